// A linear layer of the CPU operators: y = x · w + b and its two backward products, of one shape.
//
// Threads: run by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "base/units.h"
#include "kernels/model/cpu_matmul.h"
#include "kernels/model/operator_calls.h"

namespace penstock::kernels {

class Linear {
 public:
  Linear(const LinearCall& call, int threads, Bf16Arithmetic arithmetic);

  Bytes scratch() const;

  /// See ModelOperators::LinearForward. `data.residual` may be null.
  void Forward(const ProductData& data, std::byte* scratch) const;
  void BackwardInput(const std::byte* d_out, const std::byte* weight, std::byte* d_x,
                     std::byte* scratch) const;
  void BackwardWeight(const std::byte* x, const std::byte* d_out, float* d_weight, float* d_bias,
                      std::byte* scratch) const;

 private:
  const LinearCall call_;
  const int threads_;
  std::unique_ptr<Product> forward_;
  std::unique_ptr<Product> forward_residual_;
  std::unique_ptr<Product> backward_input_;
  std::unique_ptr<Product> backward_weight_;
};

/// sums[part] = the column sums of the part's rows of `in`, parts × columns in scratch; then
/// to[c] += Σ over parts, in their order.
void AccumulateColumnSums(int threads, DType dtype, const std::byte* in, uint64_t rows,
                          uint64_t columns, float* partial, float* to);
/// to[c] += Σ_p partial[p, c] (rows `stride` apart), where the sum is taken first.
void AccumulatePartials(int threads, const float* partial, uint64_t stride, uint64_t columns,
                        float* to);

}  // namespace penstock::kernels
