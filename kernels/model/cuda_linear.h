// The linear maps of a layer on the CUDA device; see Operators for what they compute.
//
// Threads: as the operators.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/model/cuda_plan.h"
#include "kernels/model/cuda_product.h"
#include "kernels/model/operators.h"

namespace penstock::kernels {

class CudaLinear {
 public:
  static Result<std::unique_ptr<CudaLinear>> Create(const CudaBlas& blas,
                                                    const OperatorOptions& options, uint64_t k,
                                                    uint64_t n);

  bool Is(uint64_t k, uint64_t n) const { return k == k_ && n == n_; }
  void Forward(device::CudaStream& stream, const CudaProduct::Data& data) {
    forward_->Run(stream, data);
  }
  void BackwardInput(device::CudaStream& stream, const std::byte* d_out, const std::byte* weight,
                     std::byte* d_x);
  /// `scratch`: for the sums of the bias.
  void BackwardWeight(device::CudaStream& stream, const std::byte* x, const std::byte* d_out,
                      float* d_weight, float* d_bias, std::byte* scratch);

 private:
  CudaLinear(const OperatorOptions& options, uint64_t k, uint64_t n)
      : dtype_(options.dtype),
        rows_(options.shapes.batch * options.shapes.sequence),
        k_(k),
        n_(n) {}

  const DType dtype_;
  const uint64_t rows_;
  const uint64_t k_;
  const uint64_t n_;
  std::unique_ptr<CudaProduct> forward_;
  std::unique_ptr<CudaProduct> backward_input_;
  std::unique_ptr<CudaProduct> backward_weight_;
};

/// The four maps, and GELU between the last two.
class CudaLinears {
 public:
  static Result<std::unique_ptr<CudaLinears>> Create(const CudaBlas& blas,
                                                     const OperatorOptions& options);
  /// k x n is a map of the layer, or it is a bug.
  CudaLinear& Find(uint64_t k, uint64_t n) const;
  /// What has no kernel of its own: "GELU and its gradient", one of them, or "nothing".
  std::string fused() const;
  /// See Operators::LinearGeluForward and LinearGeluBackwardInput.
  void ForwardGelu(device::CudaStream& stream, const std::byte* x, const std::byte* weight,
                   const std::byte* bias, std::byte* pre, std::byte* out);
  void BackwardInputGelu(device::CudaStream& stream, const std::byte* d_out,
                         const std::byte* weight, const std::byte* pre, std::byte* d_pre);

 private:
  explicit CudaLinears(const OperatorOptions& options)
      : dtype_(options.dtype), shapes_(options.shapes) {}
  uint64_t elements_of_hidden() const { return shapes_.batch * shapes_.sequence * shapes_.hidden; }

  const DType dtype_;
  const OperatorShapes shapes_;
  std::vector<std::unique_ptr<CudaLinear>> maps_;
  std::unique_ptr<CudaProduct> gelu_;           ///< null: GELU is a kernel of its own
  std::unique_ptr<CudaProduct> gelu_gradient_;  ///< likewise
};

}  // namespace penstock::kernels
