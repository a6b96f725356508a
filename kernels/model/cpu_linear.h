// The linear layers of the CPU operators: y = x · w + b and its two backward products, by shape.
//
// Threads: a Linear is run by one thread at a time; Find may be called from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/units.h"
#include "kernels/model/cpu_matmul.h"
#include "kernels/model/operators.h"

namespace penstock::kernels {

/// One shape: rows × k times k × n.
class Linear {
 public:
  Linear(const OperatorOptions& options, Bf16Arithmetic arithmetic, uint64_t k, uint64_t n);

  Bytes scratch() const;

  /// See Operators::LinearForward. `data.residual` may be null, or equal `data.c`.
  void Forward(const ProductData& data, std::byte* scratch) const;
  void BackwardInput(const std::byte* d_out, const std::byte* weight, std::byte* d_x,
                     std::byte* scratch) const;
  void BackwardWeight(const std::byte* x, const std::byte* d_out, float* d_weight, float* d_bias,
                      std::byte* scratch) const;

 private:
  const DType dtype_;
  const uint64_t rows_;
  const uint64_t n_;
  const int threads_;
  std::unique_ptr<Product> forward_;
  std::unique_ptr<Product> forward_in_place_;
  std::unique_ptr<Product> forward_residual_;
  std::unique_ptr<Product> backward_input_;
  std::unique_ptr<Product> backward_weight_;
};

/// The shapes of a transformer layer: (C, 3 C), (C, C), (C, hidden), (hidden, C).
class Linears {
 public:
  Linears(const OperatorOptions& options, Bf16Arithmetic arithmetic);

  /// The largest scratch of the shapes.
  Bytes scratch() const;
  /// Precondition: (k, n) is one of the shapes.
  const Linear& Find(uint64_t k, uint64_t n) const;

 private:
  std::map<std::pair<uint64_t, uint64_t>, Linear> shapes_;
};

/// sums[part] = the column sums of the part's rows of `in`, parts × columns in scratch; then
/// to[c] += Σ over parts, in their order.
void AccumulateColumnSums(int threads, DType dtype, const std::byte* in, uint64_t rows,
                          uint64_t columns, float* partial, float* to);
/// to[c] += Σ_p partial[p, c] (rows `stride` apart), where the sum is taken first.
void AccumulatePartials(int threads, const float* partial, uint64_t stride, uint64_t columns,
                        float* to);

}  // namespace penstock::kernels
