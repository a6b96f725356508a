// The linear maps of a layer on the CUDA device; see Operators for what they compute.
//
// Threads: as the operators.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "kernels/cuda_plan.h"
#include "kernels/cuda_product.h"
#include "kernels/operators.h"

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

/// The four maps.
class CudaLinears {
 public:
  static Result<std::unique_ptr<CudaLinears>> Create(const CudaBlas& blas,
                                                     const OperatorOptions& options);
  /// k x n is a map of the layer, or it is a bug.
  CudaLinear& Find(uint64_t k, uint64_t n) const;

 private:
  std::vector<std::unique_ptr<CudaLinear>> maps_;
};

}  // namespace penstock::kernels
