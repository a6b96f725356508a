#include "kernels/cuda_linear.h"

#include <numeric>
#include <utility>

#include "base/check.h"
#include "kernels/cuda_column_sums.h"

namespace penstock::kernels {

Result<std::unique_ptr<CudaLinear>> CudaLinear::Create(const CudaBlas& blas,
                                                       const OperatorOptions& options, uint64_t k,
                                                       uint64_t n) {
  std::unique_ptr<CudaLinear> linear(new CudaLinear(options, k, n));
  const uint64_t rows = linear->rows_;
  const auto matrix = [&](uint64_t columns, bool transposed = false) {
    return CudaOperand{.dtype = options.dtype, .stride = columns, .transposed = transposed};
  };
  // Every tensor of a layer has a multiple of so many elements.
  const uint64_t unit = std::gcd(options.shapes.width, options.shapes.hidden);
  const auto weight = [&](bool transposed) {
    CudaOperand operand = matrix(n, transposed);
    operand.unit = unit;
    return operand;
  };
  PENSTOCK_ASSIGN(linear->forward_, CudaProduct::Create(blas, {.m = rows,
                                                               .n = n,
                                                               .k = k,
                                                               .a = matrix(k),
                                                               .b = weight(false),
                                                               .c = matrix(n),
                                                               .bias = true}));
  PENSTOCK_ASSIGN(
      linear->backward_input_,
      CudaProduct::Create(
          blas, {.m = rows, .n = k, .k = n, .a = matrix(n), .b = weight(true), .c = matrix(k)}));
  PENSTOCK_ASSIGN(
      linear->backward_weight_,
      CudaProduct::Create(blas, {.m = k,
                                 .n = n,
                                 .k = rows,
                                 .a = matrix(k, true),
                                 .b = matrix(n),
                                 .c = {.dtype = DType::kFloat32, .stride = n, .unit = unit}}));
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
  auto linears = std::make_unique<CudaLinears>();
  const std::pair<uint64_t, uint64_t> maps[] = {
      {width, 3 * width}, {width, width}, {width, hidden}, {hidden, width}};
  for (const auto& [k, n] : maps) {
    PENSTOCK_ASSIGN(std::unique_ptr<CudaLinear> linear, CudaLinear::Create(blas, options, k, n));
    linears->maps_.push_back(std::move(linear));
  }
  return linears;
}

CudaLinear& CudaLinears::Find(uint64_t k, uint64_t n) const {
  for (const auto& linear : maps_) {
    if (linear->Is(k, n)) return *linear;
  }
  PENSTOCK_CHECK(false, "{} x {} is no map of the layer", k, n);
  std::abort();
}

}  // namespace penstock::kernels
