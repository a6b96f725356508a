#include "train/loop/step_batch.h"

#include <algorithm>

namespace penstock::train {

StepBatch::StepBatch(BatchReader& data, const BatchShape& shape, const config::Config& config,
                     const comm::World& world, uint64_t consumed_samples)
    : data_(data),
      shape_(shape),
      world_(world),
      rampup_(RampupOf(config)),
      consumed_samples_(consumed_samples) {
  inputs_.reserve(shape.micro_batches * shape.micro_batch * shape.sequence);
  targets_.reserve(inputs_.capacity());
}

Status StepBatch::Read() {
  const size_t tokens = shape_.micro_batch * shape_.sequence;
  micro_batches_ = NextSamples() / shape_.micro_batch / world_.size;
  inputs_.resize(micro_batches_ * tokens);
  targets_.resize(inputs_.size());
  for (uint64_t j = 0; j < micro_batches_; ++j) {
    PENSTOCK_TRY(data_.Read(PositionOf(j, 0), shape_.micro_batch,
                            std::span(inputs_).subspan(j * tokens, tokens),
                            std::span(targets_).subspan(j * tokens, tokens)));
  }
  return {};
}

std::vector<uint64_t> StepBatch::FirstRows(uint64_t most) const {
  std::vector<uint64_t> rows;
  for (uint64_t i = 0; i < std::min(tokens() / shape_.sequence, most); ++i) {
    rows.push_back(data_.RowAt(consumed_samples_ + i));
  }
  return rows;
}

void StepBatch::PassOver(uint64_t steps) {
  for (uint64_t i = 0; i < steps; ++i) Done();
}

}  // namespace penstock::train
