// Training data: tokens in files, rows of them, and the order in which rows are taken.
//
// R = (tokens - 1) / T rows; row r has inputs [rT, rT + T) and targets shifted by one. Micro-batch
// j of step s (from 1) has index i = (s - 1) * gas + j and takes positions i * B … of the order,
// modulo R with a new permutation each epoch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/result.h"

namespace penstock::train {

/// Tokens by index, read in pieces with pread: never mapped, never whole in memory; at most one
/// file is open at a time. Threads: one at a time.
class TokenData {
 public:
  /// A text file or a folder (bytes are tokens; files below a folder in path order, each followed
  /// by a zero byte; hidden files and links are left out), `.bin` (uint16) or `.u32` (uint32),
  /// little endian. Errors: kNotFound, kInvalidArgument (empty, odd size), naming the path.
  static Result<std::unique_ptr<TokenData>> Open(const std::string& path);
  virtual ~TokenData() = default;

  /// Returns what was opened, for messages.
  virtual const std::string& path() const = 0;
  /// Returns the size in tokens.
  virtual uint64_t size() const = 0;
  /// Reads tokens [begin, begin + tokens.size()). A token at or above `vocabulary` is
  /// kInvalidArgument with its value, its position and the file. Preconditions: the range lies in
  /// [0, size()); vocabulary <= 2^31.
  virtual Status Read(uint64_t begin, uint64_t vocabulary, std::span<int32_t> tokens) = 0;
};

/// Returns a hash of the number of tokens and of 64 evenly spaced pieces of 16384 tokens, or of all
/// tokens if there are fewer: enough to recognise other data without reading terabytes. Errors:
/// those of TokenData::Read.
Result<uint64_t> Fingerprint(TokenData& data, uint64_t vocabulary);

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
  /// Reads the micro-batch with global index `index` (from 0). Errors: those of TokenData::Read.
  Status Read(uint64_t index, uint64_t micro_batch, std::span<int32_t> inputs,
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
