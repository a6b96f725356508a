#include "kernels/model/cuda_linear.h"

#include <numeric>
#include <utility>

#include "base/check.h"
#include "kernels/model/cuda_column_sums.h"
#include "kernels/model/cuda_gelu.h"

namespace penstock::kernels {

namespace {

/// The products of one map of a layer.
struct LinearSpecs {
  LinearSpecs(const OperatorOptions& options, uint64_t k, uint64_t n) {
    const uint64_t rows = options.shapes.batch * options.shapes.sequence;
    const auto matrix = [&](uint64_t columns, bool transposed = false) {
      return CudaOperand{.dtype = options.dtype, .stride = columns, .transposed = transposed};
    };
    // Every tensor of a layer has a multiple of so many elements.
    const uint64_t unit = std::gcd(options.shapes.width, options.shapes.hidden);
    CudaOperand weight = matrix(n);
    weight.unit = unit;
    forward = {.m = rows,
               .n = n,
               .k = k,
               .a = matrix(k),
               .b = weight,
               .c = matrix(n),
               .epilogue = CudaEpilogue::kBias};
    weight.transposed = true;
    backward_input = {.m = rows, .n = k, .k = n, .a = matrix(n), .b = weight, .c = matrix(k)};
    backward_weight = {.m = k,
                       .n = n,
                       .k = rows,
                       .a = matrix(k, true),
                       .b = matrix(n),
                       .c = {.dtype = DType::kFloat32, .stride = n, .unit = unit}};
  }

  CudaProductSpec forward;
  CudaProductSpec backward_input;
  CudaProductSpec backward_weight;
};

/// The product with GELU in its epilogue, or null where that is left to a kernel.
Result<std::unique_ptr<CudaProduct>> WithGelu(const CudaBlas& blas, CudaProductSpec spec,
                                              CudaEpilogue epilogue) {
  spec.epilogue = epilogue;
  if (!TakesGelu(spec.b, spec.c)) return std::unique_ptr<CudaProduct>();
  return CudaProduct::CreateIfAny(blas, spec);
}

}  // namespace

Result<std::unique_ptr<CudaLinear>> CudaLinear::Create(const CudaBlas& blas,
                                                       const OperatorOptions& options, uint64_t k,
                                                       uint64_t n) {
  std::unique_ptr<CudaLinear> linear(new CudaLinear(options, k, n));
  const LinearSpecs specs(options, k, n);
  PENSTOCK_ASSIGN(linear->forward_, CudaProduct::Create(blas, specs.forward));
  PENSTOCK_ASSIGN(linear->backward_input_, CudaProduct::Create(blas, specs.backward_input));
  PENSTOCK_ASSIGN(linear->backward_weight_, CudaProduct::Create(blas, specs.backward_weight));
  return linear;
}

void CudaLinear::BackwardInput(device::CudaStream& stream, const std::byte* d_out,
                               const std::byte* weight, std::byte* d_x) {
  backward_input_->Run(stream, {.a = d_out, .b = weight, .c = d_x});
}

void CudaLinear::BackwardWeight(device::CudaStream& stream, const std::byte* x,
                                const std::byte* d_out, float* d_weight, float* d_bias,
                                std::byte* scratch) {
  auto* const sums = reinterpret_cast<std::byte*>(d_weight);
  backward_weight_->Run(stream, {.a = x, .b = d_out, .c = sums, .addend = sums});
  CudaAddBiasGradient(stream, dtype_, rows_, n_, d_out, reinterpret_cast<float*>(scratch), d_bias);
}

Result<std::unique_ptr<CudaLinears>> CudaLinears::Create(const CudaBlas& blas,
                                                         const OperatorOptions& options) {
  const uint64_t width = options.shapes.width;
  const uint64_t hidden = options.shapes.hidden;
  std::unique_ptr<CudaLinears> linears(new CudaLinears(options));
  const std::pair<uint64_t, uint64_t> maps[] = {
      {width, 3 * width}, {width, width}, {width, hidden}, {hidden, width}};
  for (const auto& [k, n] : maps) {
    PENSTOCK_ASSIGN(std::unique_ptr<CudaLinear> linear, CudaLinear::Create(blas, options, k, n));
    linears->maps_.push_back(std::move(linear));
  }
  PENSTOCK_ASSIGN(linears->gelu_, WithGelu(blas, LinearSpecs(options, width, hidden).forward,
                                           CudaEpilogue::kBiasGelu));
  PENSTOCK_ASSIGN(linears->gelu_gradient_,
                  WithGelu(blas, LinearSpecs(options, hidden, width).backward_input,
                           CudaEpilogue::kGeluGradient));
  return linears;
}

CudaLinear& CudaLinears::Find(uint64_t k, uint64_t n) const {
  for (const auto& linear : maps_) {
    if (linear->Is(k, n)) return *linear;
  }
  PENSTOCK_CHECK(false, "{} x {} is no map of the layer", k, n);
  std::abort();
}

std::string CudaLinears::fused() const {
  if (gelu_ != nullptr) return gelu_gradient_ != nullptr ? "GELU and its gradient" : "GELU";
  return gelu_gradient_ != nullptr ? "the gradient of GELU" : "nothing";
}

void CudaLinears::ForwardGelu(device::CudaStream& stream, const std::byte* x,
                              const std::byte* weight, const std::byte* bias, std::byte* pre,
                              std::byte* out) {
  if (gelu_ != nullptr) {
    gelu_->Run(stream, {.a = x, .b = weight, .c = out, .bias = bias, .pre_out = pre});
    return;
  }
  Find(shapes_.width, shapes_.hidden)
      .Forward(stream, {.a = x, .b = weight, .c = pre, .bias = bias});
  CudaGeluForward(stream, dtype_, elements_of_hidden(), pre, out);
}

void CudaLinears::BackwardInputGelu(device::CudaStream& stream, const std::byte* d_out,
                                    const std::byte* weight, const std::byte* pre,
                                    std::byte* d_pre) {
  if (gelu_gradient_ != nullptr) {
    gelu_gradient_->Run(stream, {.a = d_out, .b = weight, .c = d_pre, .pre = pre});
    return;
  }
  Find(shapes_.hidden, shapes_.width).BackwardInput(stream, d_out, weight, d_pre);
  CudaGeluBackward(stream, dtype_, elements_of_hidden(), pre, d_pre, d_pre);
}

}  // namespace penstock::kernels
