// Training data: rows of tokens, and the order in which rows are taken.
//
// R = (tokens - 1) / T rows; row r has inputs [rT, rT + T) and targets shifted by one. Micro-batch
// j of a rank has index i = c / B + j * ranks + rank, where c rows were taken by the steps before,
// and takes positions i * B … of the order, modulo R with a new permutation each epoch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"
#include "train/loop/token_data.h"

namespace penstock::train {

enum class DataOrder { kShuffle, kSequential };
/// "shuffle", "sequential".
const char* ToString(DataOrder order);

/// Returns which row has a position in the endless order. Shuffle: epoch e uses the permutation
/// Permutation(seed, stream = 2^32 + e, R) of base/random.h.
class RowOrder {
 public:
  RowOrder(DataOrder order, uint64_t rows, uint64_t seed);
  uint64_t operator()(uint64_t position) const;

 private:
  DataOrder order_;
  uint64_t rows_;
  uint64_t seed_;
};

/// The rows of one micro-batch: inputs and targets, [micro_batch, T] each. Threads: one at a time.
class BatchReader {
 public:
  /// Errors: kInvalidArgument if T is 0 or the data is shorter than one row (T + 1 tokens).
  static Result<BatchReader> Create(std::unique_ptr<TokenData> data, DataOrder order, uint64_t seed,
                                    uint64_t sequence, uint64_t vocabulary);
  uint64_t rows() const { return rows_; }
  /// Returns which row of the data has a position in the order.
  uint64_t RowAt(uint64_t position) const { return order_(position); }
  /// Reads the micro-batch that begins at a position in the order. Errors: those of
  /// TokenData::Read.
  Status Read(uint64_t position, uint64_t micro_batch, std::span<int32_t> inputs,
              std::span<int32_t> targets);

 private:
  BatchReader(std::unique_ptr<TokenData> data, RowOrder order, uint64_t rows, uint64_t sequence,
              uint64_t vocabulary)
      : data_(std::move(data)),
        order_(order),
        rows_(rows),
        sequence_(sequence),
        vocabulary_(vocabulary) {}

  std::unique_ptr<TokenData> data_;
  RowOrder order_;
  uint64_t rows_;
  uint64_t sequence_;
  uint64_t vocabulary_;
};

}  // namespace penstock::train
