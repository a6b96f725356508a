// The gradient of the CPU operators' embedding: rows are added to the rows of two tables that they
// came from.
//
// Threads: run by one thread at a time; uses OpenMP's pool of that thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/units.h"
#include "kernels/cpu_parallel.h"
#include "kernels/model/operator_calls.h"
#include "kernels/model/tensor_view.h"

namespace penstock::kernels {

/// See ModelOperators::EmbeddingBackward.
struct EmbeddingGradientData {
  TokenView tokens;
  const std::byte* d_out = nullptr;
  bool adds_once = false;
  uint64_t vocabulary = 0;  ///< tokens are below it
  float* d_token_table = nullptr;
  float* d_position_table = nullptr;
};

class EmbeddingGradient {
 public:
  EmbeddingGradient(const EmbeddingCall& call, int threads) : call_(call), threads_(threads) {}

  /// Returns the scratch for the order of the rows.
  Bytes scratch() const { return call_.rows * Bytes{sizeof(uint64_t)}; }
  void Run(const EmbeddingGradientData& data, std::byte* scratch) const;

 private:
  // Each adds to some columns of a table.
  void AddTokens(const EmbeddingGradientData& data, std::span<const uint64_t> order,
                 Range columns) const;
  void AddPositions(const EmbeddingGradientData& data, Range columns) const;
  /// Adds the rows row_of(0), row_of(1) … row_of(count - 1) of d_out to a row of a table.
  template <typename RowOf>
  void AddRows(const EmbeddingGradientData& data, uint64_t count, const RowOf& row_of,
               Range columns, float* row) const;

  const EmbeddingCall call_;
  const int threads_;
};

}  // namespace penstock::kernels
