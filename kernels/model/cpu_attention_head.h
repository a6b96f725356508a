// One head of causal self-attention, on one thread.
//
// The head is computed by blocks of queries: the scores of a block against all keys that it may
// see, the causal softmax, the product with the values. So the scratch holds block × sequence
// probabilities, and the masked half is computed only within the blocks on the diagonal. There the
// masked probabilities are zeros that take part in the products: finite values behind them change
// nothing, but a NaN or an infinity in a value reaches all queries of its block.
//
// Threads: run by one thread at a time, with OpenMP's thread count set to 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/units.h"
#include "kernels/dtype.h"
#include "kernels/model/cpu_matmul.h"
#include "kernels/model/cpu_rows.h"

namespace penstock::kernels {

/// Queries, keys, values and their gradients are [sequence, width] with rows `qkv_stride` elements
/// apart; the output and its gradient with rows `out_stride` apart. All are of `dtype`, which the
/// machine multiplies itself.
struct AttentionHeadSpec {
  uint64_t sequence = 0;
  uint64_t width = 0;
  DType dtype = DType::kFloat32;
  uint64_t qkv_stride = 0;
  uint64_t out_stride = 0;
};

/// Three matrices of a head: queries, keys and values, or the gradients at them.
template <typename T>
struct HeadMatrices {
  T* q;
  T* k;
  T* v;
};

class AttentionHead {
 public:
  explicit AttentionHead(const AttentionHeadSpec& spec);

  Bytes scratch() const { return cursor_.used(); }
  void Forward(const HeadMatrices<const std::byte>& in, std::byte* out, std::byte* scratch);
  void Backward(const HeadMatrices<const std::byte>& in, const std::byte* d_out,
                const HeadMatrices<std::byte>& d_in, std::byte* scratch);

 private:
  /// A block of queries, and the keys that they may see.
  struct Block {
    uint64_t first;
    uint64_t rows;
    uint64_t keys;
    std::unique_ptr<Product> scores;   ///< [rows, keys] = q kᵀ
    std::unique_ptr<Product> context;  ///< [rows, width] = p v
    std::unique_ptr<Product> d_p;      ///< [rows, keys] = d_out vᵀ
    std::unique_ptr<Product> d_query;  ///< [rows, width] = d_scores k
    std::unique_ptr<Product> d_key;    ///< [keys, width] += d_scoresᵀ q
    std::unique_ptr<Product> d_value;  ///< [keys, width] += pᵀ d_out
  };

  Block MakeBlock(uint64_t first, uint64_t rows) const;
  Bytes LargestProductScratch() const;
  CausalStrip Strip(const Block& block) const;
  /// Rounds a gradient [sequence, width] in fp32 to where it belongs.
  void StoreGradient(const std::byte* sums, std::byte* to) const;

  const AttentionHeadSpec spec_;
  const uint64_t strip_stride_;
  std::vector<Block> blocks_;
  ScratchCursor cursor_;
  // Offsets in scratch. For fp32, the results of the softmax lie where its operands were.
  uint64_t scores_;         ///< fp32 [block, strip_stride]
  uint64_t d_p_;            ///< fp32 [block, strip_stride]
  uint64_t probabilities_;  ///< dtype [block, strip_stride]
  uint64_t d_scores_;       ///< dtype [block, strip_stride]
  uint64_t d_key_;          ///< fp32 [sequence, width]
  uint64_t d_value_;        ///< fp32 [sequence, width]
  uint64_t inner_;
};

}  // namespace penstock::kernels
