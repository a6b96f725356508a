// The linear maps of a layer on the CUDA device; see ModelOperators for what they compute.
//
// Threads: as the operators.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "kernels/model/cuda_product.h"
#include "kernels/model/operator_calls.h"

namespace penstock::kernels {

class CudaLinear {
 public:
  /// `weight_unit`: see OperatorOptions.
  static Result<std::unique_ptr<CudaLinear>> Create(const CudaBlas& blas, const LinearCall& call,
                                                    uint64_t weight_unit);

  void Forward(device::CudaStream& stream, const CudaProduct::Data& data) {
    forward_->Run(stream, data);
  }
  void BackwardInput(device::CudaStream& stream, const std::byte* d_out, const std::byte* weight,
                     std::byte* d_x);
  /// `scratch`: for the sums of the bias.
  void BackwardWeight(device::CudaStream& stream, const std::byte* x, const std::byte* d_out,
                      float* d_weight, float* d_bias, std::byte* scratch);

 private:
  explicit CudaLinear(const LinearCall& call) : call_(call) {}

  const LinearCall call_;
  std::unique_ptr<CudaProduct> forward_;
  std::unique_ptr<CudaProduct> backward_input_;
  std::unique_ptr<CudaProduct> backward_weight_;
};

/// GELU behind a map, and its gradient behind the backward of the next one: in the products where
/// cuBLASLt has that, else as kernels of their own.
class CudaLinearGelu {
 public:
  /// Borrows the maps, which are those of the call.
  static Result<std::unique_ptr<CudaLinearGelu>> Create(const CudaBlas& blas,
                                                        const LinearGeluCall& call,
                                                        uint64_t weight_unit, CudaLinear& inward,
                                                        CudaLinear& outward);
  /// What has no kernel of its own: "GELU and its gradient", one of them, or "nothing".
  std::string fused() const;
  /// See ModelOperators::LinearGeluForward and LinearGeluBackwardInput.
  void Forward(device::CudaStream& stream, const std::byte* x, const std::byte* weight,
               const std::byte* bias, std::byte* pre, std::byte* out);
  void BackwardInput(device::CudaStream& stream, const std::byte* d_out, const std::byte* weight,
                     const std::byte* pre, std::byte* d_pre);

 private:
  CudaLinearGelu(const LinearGeluCall& call, CudaLinear& inward, CudaLinear& outward)
      : call_(call), inward_(inward), outward_(outward) {}
  uint64_t elements() const { return call_.rows * call_.hidden; }

  const LinearGeluCall call_;
  CudaLinear& inward_;
  CudaLinear& outward_;
  std::unique_ptr<CudaProduct> gelu_;           ///< null: GELU is a kernel of its own
  std::unique_ptr<CudaProduct> gelu_gradient_;  ///< likewise
};

}  // namespace penstock::kernels
