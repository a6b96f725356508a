#include "train/loop/data.h"

#include <algorithm>
#include <vector>

#include "base/random.h"

namespace penstock::train {
namespace {

// Streams of a key below this one belong to the model's initialisation.
constexpr uint64_t kFirstEpochStream = uint64_t{1} << 32;

}  // namespace

const char* ToString(DataOrder order) {
  return order == DataOrder::kShuffle ? "shuffle" : "sequential";
}

RowOrder::RowOrder(DataOrder order, uint64_t rows, uint64_t seed)
    : order_(order), rows_(rows), seed_(seed) {
  PENSTOCK_CHECK(rows > 0);
}

uint64_t RowOrder::operator()(uint64_t position) const {
  const uint64_t within = position % rows_;
  if (order_ == DataOrder::kSequential) return within;
  return Permutation(seed_, kFirstEpochStream + position / rows_, rows_)(within);
}

Result<BatchReader> BatchReader::Create(std::unique_ptr<TokenData> data, DataOrder order,
                                        uint64_t seed, uint64_t sequence, uint64_t vocabulary) {
  if (sequence == 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "a sequence length of 0 leaves nothing to train on; give at least 1");
  }
  const uint64_t rows = data->size() == 0 ? 0 : (data->size() - 1) / sequence;
  if (rows == 0) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "data {} has {} tokens, fewer than the {} of one row (sequence length {} and one "
        "for the last target); give more data or a smaller --sequence-length",
        data->path(), data->size(), sequence + 1, sequence);
  }
  return BatchReader(std::move(data), RowOrder(order, rows, seed), rows, sequence, vocabulary);
}

Status BatchReader::Read(uint64_t position, uint64_t micro_batch, std::span<int32_t> inputs,
                         std::span<int32_t> targets) {
  PENSTOCK_CHECK(inputs.size() == micro_batch * sequence_ && targets.size() == inputs.size());
  std::vector<int32_t> row(sequence_ + 1);
  for (uint64_t i = 0; i < micro_batch; ++i) {
    PENSTOCK_TRY(data_->Read(order_(position + i) * sequence_, vocabulary_, row));
    const auto at = static_cast<std::ptrdiff_t>(i * sequence_);
    std::copy(row.begin(), row.end() - 1, inputs.begin() + at);
    std::copy(row.begin() + 1, row.end(), targets.begin() + at);
  }
  return {};
}

}  // namespace penstock::train
