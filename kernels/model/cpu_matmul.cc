#include "kernels/model/cpu_matmul.h"

#include <algorithm>
#include <dnnl.hpp>
#include <vector>

#include "base/check.h"
#include "kernels/cpu_parallel.h"
#include "kernels/model/cpu_matmul_native.h"
#include "kernels/model/cpu_rows.h"

namespace penstock::kernels {
namespace {

/// Elements of a product that kAccumulate computes at once: few enough to stay in the last cache
/// until they are added, enough to keep many threads busy. (A product in one panel has dense
/// operands, which oneDNN's best kernels ask for; strided ones go to its gemm, as fast here.)
constexpr uint64_t kAccumulatePanel = uint64_t{1} << 20;
/// Panels have a multiple of this many rows, except the last one.
constexpr uint64_t kPanelRows = 32;
/// Unit of the work of one thread in the loops over elements.
constexpr uint64_t kGrain = 1024;

dnnl::memory::data_type DataType(DType dtype) {
  PENSTOCK_CHECK(dtype != DType::kFloat16);
  return dtype == DType::kBFloat16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

dnnl::memory::desc Describe(const Operand& operand, uint64_t rows, uint64_t columns) {
  using Dim = dnnl::memory::dim;
  const auto stride = static_cast<Dim>(operand.stride);
  const dnnl::memory::dims strides =
      operand.transposed ? dnnl::memory::dims{1, stride} : dnnl::memory::dims{stride, 1};
  return {{static_cast<Dim>(rows), static_cast<Dim>(columns)}, DataType(operand.dtype), strides};
}

dnnl::primitive_attr Attributes(const ProductSpec& spec, const dnnl::memory::desc& c) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attributes.set_fpmath_mode(dnnl::fpmath_mode::strict);
  dnnl::post_ops post_ops;
  if (spec.epilogue == Epilogue::kAddInPlace) post_ops.append_sum(1.0f);
  if (spec.epilogue == Epilogue::kAddResidual) {
    post_ops.append_binary(dnnl::algorithm::binary_add, c);
  }
  attributes.set_post_ops(post_ops);
  return attributes;
}

void SetHandle(dnnl::memory& memory, const std::byte* data) {
  memory.set_data_handle(const_cast<std::byte*>(data));
}

/// dst += a · b, in panels of rows of dst: each is computed into scratch and then added.
class AccumulatingProduct final : public Product {
 public:
  explicit AccumulatingProduct(const ProductSpec& spec) : spec_(spec) {
    PENSTOCK_CHECK(spec.c.dtype == DType::kFloat32 && !spec.bias);
    // Nearly equal panels: a small rest would not keep the threads busy.
    const uint64_t panels = (spec.m * spec.n + kAccumulatePanel - 1) / kAccumulatePanel;
    const uint64_t rows = (spec.m + panels - 1) / panels;
    rows_ = std::min(spec.m, (rows + kPanelRows - 1) / kPanelRows * kPanelRows);
    panel_ = cursor_.Take(Bytes{rows_ * spec.n * sizeof(float)});
    product_ = std::make_unique<NativeProduct>(PanelSpec(rows_));
    if (const uint64_t rest = spec.m % rows_; rest > 0) {
      last_ = std::make_unique<NativeProduct>(PanelSpec(rest));
    }
    inner_ = cursor_.Take(std::max(product_->scratch(), last_ ? last_->scratch() : 0_B));
  }

  Bytes scratch() const override { return cursor_.used(); }

  void Run(const ProductData& data, std::byte* scratch) override {
    for (uint64_t row = 0; row < spec_.m; row += rows_) {
      const uint64_t rows = std::min(rows_, spec_.m - row);
      NativeProduct& product = rows == rows_ ? *product_ : *last_;
      product.Run({.a = At(spec_.a, data.a, row, 0), .b = data.b, .c = scratch + panel_},
                  scratch + inner_);
      AddPanel(reinterpret_cast<const float*>(scratch + panel_), rows,
               reinterpret_cast<float*>(At(spec_.c, data.c, row, 0)));
    }
  }

 private:
  ProductSpec PanelSpec(uint64_t rows) const {
    ProductSpec panel = spec_;
    panel.m = rows;
    panel.c = {.dtype = DType::kFloat32, .stride = spec_.n};
    panel.epilogue = Epilogue::kStore;
    return panel;
  }

  void AddPanel(const float* panel, uint64_t rows, float* c) const {
    if (spec_.c.stride == spec_.n) {
      ParallelRanges(spec_.threads, rows * spec_.n, kGrain, [&](Range range) {
        AddToFloats(DType::kFloat32, panel + range.begin, c + range.begin, range.size());
      });
      return;
    }
    ParallelRanges(spec_.threads, rows, 1, [&](Range range) {
      for (uint64_t row = range.begin; row < range.end; ++row) {
        AddToFloats(DType::kFloat32, panel + row * spec_.n, c + row * spec_.c.stride, spec_.n);
      }
    });
  }

  const ProductSpec spec_;
  uint64_t rows_;
  ScratchCursor cursor_;
  uint64_t panel_;
  uint64_t inner_;
  std::unique_ptr<NativeProduct> product_;
  std::unique_ptr<NativeProduct> last_;  ///< rows that do not fill a panel; may be null
};

}  // namespace

Bf16Arithmetic BestBf16Arithmetic() {
  const auto has = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto needed = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (has & needed) == needed ? Bf16Arithmetic::kNative : Bf16Arithmetic::kConvert;
}

bool Converts(DType dtype, Bf16Arithmetic arithmetic) {
  return dtype == DType::kFloat16 ||
         (dtype == DType::kBFloat16 && arithmetic == Bf16Arithmetic::kConvert);
}

NativeProduct::NativeProduct(const ProductSpec& spec) {
  PENSTOCK_CHECK(spec.epilogue != Epilogue::kAccumulate && spec.a.dtype == spec.b.dtype);
  const ThreadCountScope threads(spec.threads);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto a = Describe(spec.a, spec.m, spec.k);
  const auto b = Describe(spec.b, spec.k, spec.n);
  const auto c = Describe(spec.c, spec.m, spec.n);
  const auto bias = spec.bias ? Describe({.dtype = spec.a.dtype, .stride = spec.n}, 1, spec.n)
                              : dnnl::memory::desc();
  const auto operation =
      spec.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  const dnnl::matmul::primitive_desc primitive(operation, Attributes(spec, c), engine);
  matmul_ = dnnl::matmul(primitive);
  stream_ = dnnl::stream(engine);
  const auto bind = [&](const dnnl::memory::desc& what, dnnl::memory& memory, int argument) {
    memory = dnnl::memory(what, engine, nullptr);
    arguments_.emplace(argument, memory);
  };
  bind(a, a_, DNNL_ARG_SRC);
  bind(b, b_, DNNL_ARG_WEIGHTS);
  bind(c, c_, DNNL_ARG_DST);
  bind(primitive.scratchpad_desc(), scratch_, DNNL_ARG_SCRATCHPAD);
  if (spec.bias) bind(bias, bias_, DNNL_ARG_BIAS);
  if (spec.epilogue == Epilogue::kAddResidual) {
    bind(c, residual_, DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1);
  }
}

void NativeProduct::Run(const ProductData& data, std::byte* scratch) {
  SetHandle(a_, data.a);
  SetHandle(b_, data.b);
  SetHandle(c_, data.c);
  SetHandle(scratch_, scratch);
  if (bias_) SetHandle(bias_, data.bias);
  if (residual_) SetHandle(residual_, data.residual);
  matmul_.execute(stream_, arguments_);
}

std::unique_ptr<Product> MakeAccumulatingProduct(const ProductSpec& spec) {
  return std::make_unique<AccumulatingProduct>(spec);
}

std::unique_ptr<Product> MakeProduct(const ProductSpec& spec, Bf16Arithmetic arithmetic) {
  if (Converts(spec.a.dtype, arithmetic)) return MakeConvertingProduct(spec);
  if (spec.epilogue == Epilogue::kAccumulate) return MakeAccumulatingProduct(spec);
  return std::make_unique<NativeProduct>(spec);
}

}  // namespace penstock::kernels
