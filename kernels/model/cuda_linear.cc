#include "kernels/model/cuda_linear.h"

#include "kernels/model/call_shapes.h"
#include "kernels/model/cuda_column_sums.h"
#include "kernels/model/cuda_gelu.h"

namespace penstock::kernels {

namespace {

/// The products of one map of a layer.
struct LinearSpecs {
  LinearSpecs(const LinearCall& call, uint64_t unit) {
    const auto& [dtype, rows, k, n] = call;
    const auto matrix = [type = call.dtype](uint64_t columns, bool transposed = false) {
      return CudaOperand{.dtype = type, .stride = columns, .transposed = transposed};
    };
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

/// The product with GELU in its epilogue, or null if that is left to a kernel.
Result<std::unique_ptr<CudaProduct>> WithGelu(const CudaBlas& blas, CudaProductSpec spec,
                                              CudaEpilogue epilogue) {
  spec.epilogue = epilogue;
  if (!TakesGelu(spec.b, spec.c)) return std::unique_ptr<CudaProduct>();
  return CudaProduct::CreateIfAny(blas, spec);
}

}  // namespace

Result<std::unique_ptr<CudaLinear>> CudaLinear::Create(const CudaBlas& blas, const LinearCall& call,
                                                       uint64_t weight_unit) {
  std::unique_ptr<CudaLinear> linear(new CudaLinear(call));
  const LinearSpecs specs(call, weight_unit);
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
  CudaAddBiasGradient(stream, call_.dtype, call_.rows, call_.n, d_out,
                      reinterpret_cast<float*>(scratch), d_bias);
}

Result<std::unique_ptr<CudaLinearGelu>> CudaLinearGelu::Create(const CudaBlas& blas,
                                                               const LinearGeluCall& call,
                                                               uint64_t weight_unit,
                                                               CudaLinear& inward,
                                                               CudaLinear& outward) {
  std::unique_ptr<CudaLinearGelu> made(new CudaLinearGelu(call, inward, outward));
  PENSTOCK_ASSIGN(made->gelu_, WithGelu(blas, LinearSpecs(InwardOf(call), weight_unit).forward,
                                        CudaEpilogue::kBiasGelu));
  PENSTOCK_ASSIGN(made->gelu_gradient_,
                  WithGelu(blas, LinearSpecs(OutwardOf(call), weight_unit).backward_input,
                           CudaEpilogue::kGeluGradient));
  return made;
}

std::string CudaLinearGelu::fused() const {
  if (gelu_ != nullptr) return gelu_gradient_ != nullptr ? "GELU and its gradient" : "GELU";
  return gelu_gradient_ != nullptr ? "the gradient of GELU" : "nothing";
}

void CudaLinearGelu::Forward(device::CudaStream& stream, const std::byte* x,
                             const std::byte* weight, const std::byte* bias, std::byte* pre,
                             std::byte* out) {
  if (gelu_ != nullptr) {
    gelu_->Run(stream, {.a = x, .b = weight, .c = out, .bias = bias, .pre_out = pre});
    return;
  }
  inward_.Forward(stream, {.a = x, .b = weight, .c = pre, .bias = bias});
  CudaGeluForward(stream, call_.dtype, elements(), pre, out);
}

void CudaLinearGelu::BackwardInput(device::CudaStream& stream, const std::byte* d_out,
                                   const std::byte* weight, const std::byte* pre,
                                   std::byte* d_pre) {
  if (gelu_gradient_ != nullptr) {
    gelu_gradient_->Run(stream, {.a = d_out, .b = weight, .c = d_pre, .pre = pre});
    return;
  }
  outward_.BackwardInput(stream, d_out, weight, d_pre);
  CudaGeluBackward(stream, call_.dtype, elements(), pre, d_pre, d_pre);
}

}  // namespace penstock::kernels
