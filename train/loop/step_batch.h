// The data of the current step: the rows that this rank takes, and their tokens.
//
// A step takes the rows after those of earlier steps, which are dealt out to ranks and
// micro-batches (train/loop/data.h). Threads: one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "comm/world.h"
#include "config/config.h"
#include "train/loop/data.h"
#include "train/models/model.h"
#include "train/plan/batch_rampup.h"

namespace penstock::train {

class StepBatch {
 public:
  /// `data` outlives the object. `consumed_samples`: samples of all earlier steps and ranks.
  StepBatch(BatchReader& data, const BatchShape& shape, const config::Config& config,
            const comm::World& world, uint64_t consumed_samples);

  /// Reads the data of the next step. Errors: of BatchReader::Read.
  Status Read();
  // For the step that was read last.
  uint64_t micro_batches() const { return micro_batches_; }  ///< micro-batches of this rank
  std::span<const int32_t> inputs() const { return inputs_; }
  std::span<const int32_t> targets() const { return targets_; }
  uint64_t tokens() const { return inputs_.size() * world_.size; }  ///< tokens of all ranks
  /// Returns which row of the data is row `i` of a micro-batch of this rank.
  uint64_t RowOf(uint64_t micro_batch, uint64_t i) const {
    return data_.RowAt(PositionOf(micro_batch, i));
  }
  /// Returns the step's first rows of the data, at most `count`.
  std::vector<uint64_t> FirstRows(uint64_t most) const;

  /// Marks the step that was read as done.
  void Done() { consumed_samples_ += NextSamples(); }
  /// Passes over steps, whose rows count as taken.
  void PassOver(uint64_t steps);
  /// Returns the number of rows that finished steps took, on all ranks.
  uint64_t consumed_samples() const { return consumed_samples_; }

 private:
  uint64_t NextSamples() const { return rampup_.BatchAfter(consumed_samples_); }
  uint64_t PositionOf(uint64_t micro_batch, uint64_t i) const {
    return consumed_samples_ + (micro_batch * world_.size + world_.rank) * shape_.micro_batch + i;
  }

  BatchReader& data_;
  const BatchShape shape_;
  const comm::World world_;
  const BatchRampup rampup_;
  uint64_t consumed_samples_;
  uint64_t micro_batches_ = 0;
  std::vector<int32_t> inputs_;
  std::vector<int32_t> targets_;
};

}  // namespace penstock::train
