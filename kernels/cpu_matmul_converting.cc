// Products of bf16 matrices on machines without bf16 instructions: panels of a and b are converted
// to fp32 in scratch, multiplied there, and finished by loops of our own. Panels have one size;
// what a matrix does not fill of its last panels is zero.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/cpu_matmul_native.h"
#include "kernels/cpu_parallel.h"
#include "kernels/cpu_rows.h"

namespace penstock::kernels {
namespace {

/// Upper bounds of the panels: a is m by k, b is k by n. Each conversion of a panel is spread over
/// hundreds of multiplications of its elements.
constexpr uint64_t kPanelM = 256;
constexpr uint64_t kPanelN = 512;
constexpr uint64_t kPanelK = 1024;

/// An fp32 panel of one operand, in the storage order of the operand, so that nothing is
/// transposed.
struct Panel {
  uint64_t rows;  ///< of the operand as the product sees it
  uint64_t columns;
  uint64_t offset;  ///< in scratch
};

class ConvertingProduct final : public Product {
 public:
  explicit ConvertingProduct(const ProductSpec& spec) : spec_(spec) {
    PENSTOCK_CHECK(spec.a.dtype == DType::kBFloat16 && spec.b.dtype == DType::kBFloat16);
    PENSTOCK_CHECK(spec.epilogue != Epilogue::kAccumulate || spec.c.dtype == DType::kFloat32);
    const uint64_t m = std::min(spec.m, kPanelM);
    const uint64_t n = std::min(spec.n, kPanelN);
    const uint64_t k = std::min(spec.k, kPanelK);
    const auto take = [&](uint64_t rows, uint64_t columns) {
      return Panel{rows, columns, cursor_.Take(Bytes{rows * columns * sizeof(float)})};
    };
    a_ = take(m, k);
    b_ = take(k, n);
    c_ = take(m, n);
    product_ = std::make_unique<NativeProduct>(
        ProductSpec{.m = m,
                    .n = n,
                    .k = k,
                    .a = {.stride = spec.a.transposed ? m : k, .transposed = spec.a.transposed},
                    .b = {.stride = spec.b.transposed ? k : n, .transposed = spec.b.transposed},
                    .c = {.stride = n},
                    .epilogue = Epilogue::kAddInPlace,
                    .threads = spec.threads});
    inner_ = cursor_.Take(product_->scratch());
  }

  Bytes scratch() const override { return cursor_.used(); }

  void Run(const ProductData& data, std::byte* scratch) override {
    for (uint64_t column = 0; column < spec_.n; column += c_.columns) {
      for (uint64_t row = 0; row < spec_.m; row += c_.rows) {
        Multiply(data, row, column, scratch);
        Finish(data, row, column, scratch);
      }
    }
  }

 private:
  static float* Floats(std::byte* scratch, const Panel& panel) {
    return reinterpret_cast<float*>(scratch + panel.offset);
  }

  void Multiply(const ProductData& data, uint64_t row, uint64_t column, std::byte* scratch) {
    std::memset(scratch + c_.offset, 0, c_.rows * c_.columns * sizeof(float));
    for (uint64_t inner = 0; inner < spec_.k; inner += a_.columns) {
      const uint64_t k = std::min(a_.columns, spec_.k - inner);
      Convert(spec_.a, At(spec_.a, data.a, row, inner), std::min(a_.rows, spec_.m - row), k, a_,
              scratch);
      Convert(spec_.b, At(spec_.b, data.b, inner, column), k,
              std::min(b_.columns, spec_.n - column), b_, scratch);
      product_->Run({.a = scratch + a_.offset, .b = scratch + b_.offset, .c = scratch + c_.offset},
                    scratch + inner_);
    }
  }

  /// Fills `panel` with the rows × columns elements at `from`, and zeros.
  void Convert(const Operand& operand, const std::byte* from, uint64_t rows, uint64_t columns,
               const Panel& panel, std::byte* scratch) const {
    const uint64_t stored_rows = operand.transposed ? panel.columns : panel.rows;
    const uint64_t stored_columns = operand.transposed ? panel.rows : panel.columns;
    const uint64_t filled_rows = operand.transposed ? columns : rows;
    const uint64_t filled_columns = operand.transposed ? rows : columns;
    const uint64_t row_bytes = operand.stride * SizeOf(DType::kBFloat16).value;
    float* to = Floats(scratch, panel);
    ParallelRanges(spec_.threads, stored_rows, 1, [&](Range range) {
      for (uint64_t row = range.begin; row < range.end; ++row) {
        float* out = to + row * stored_columns;
        uint64_t filled = 0;
        if (row < filled_rows) {
          filled = filled_columns;
          ConvertElements(DType::kBFloat16, from + row * row_bytes, DType::kFloat32, out, filled);
        }
        std::fill(out + filled, out + stored_columns, 0.0f);
      }
    });
  }

  void Finish(const ProductData& data, uint64_t row, uint64_t column, std::byte* scratch) const {
    const uint64_t rows = std::min(c_.rows, spec_.m - row);
    const uint64_t columns = std::min(c_.columns, spec_.n - column);
    ParallelRanges(spec_.threads, rows, 1, [&](Range range) {
      for (uint64_t r = range.begin; r < range.end; ++r) {
        FinishRow(data, row + r, column, columns, Floats(scratch, c_) + r * c_.columns);
      }
    });
  }

  /// Adds what the epilogue adds to the row `sums`, and stores it.
  void FinishRow(const ProductData& data, uint64_t row, uint64_t column, uint64_t columns,
                 float* sums) const {
    std::byte* c = At(spec_.c, data.c, row, column);
    const auto add = [&](DType dtype, const std::byte* addend) {
      AddToFloats(dtype, addend, sums, columns);
    };
    if (spec_.bias) {
      add(DType::kBFloat16, data.bias + column * SizeOf(DType::kBFloat16).value);
    }
    if (spec_.epilogue == Epilogue::kAddResidual) {
      add(spec_.c.dtype, At(spec_.c, data.residual, row, column));
    }
    if (spec_.epilogue == Epilogue::kAddInPlace || spec_.epilogue == Epilogue::kAccumulate) {
      add(spec_.c.dtype, c);
    }
    ConvertElements(DType::kFloat32, sums, spec_.c.dtype, c, columns);
  }

  const ProductSpec spec_;
  ScratchCursor cursor_;
  Panel a_;
  Panel b_;
  Panel c_;
  uint64_t inner_;
  std::unique_ptr<NativeProduct> product_;
};

}  // namespace

std::unique_ptr<Product> MakeConvertingProduct(const ProductSpec& spec) {
  return std::make_unique<ConvertingProduct>(spec);
}

}  // namespace penstock::kernels
