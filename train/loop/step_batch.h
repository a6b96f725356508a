// The data of the step that is computed: which rows this rank takes, and their tokens.
//
// A step takes the rows behind those that the steps before took; micro-batch j of a rank takes
// every so many rows of them (train/loop/data.h). Threads: one.
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
  /// `data` outlives the object. `consumed_samples`: what the steps before took, of all ranks.
  StepBatch(BatchReader& data, const BatchShape& shape, const config::Config& config,
            const comm::World& world, uint64_t consumed_samples);

  /// Reads the data of the next step. Errors: of BatchReader::Read.
  Status Read();
  /// Of the step that was read last.
  uint64_t micro_batches() const { return micro_batches_; }  ///< of this rank
  std::span<const int32_t> inputs() const { return inputs_; }
  std::span<const int32_t> targets() const { return targets_; }
  uint64_t tokens() const { return inputs_.size() * world_.size; }  ///< of all ranks
  /// Returns which row of the data is row `i` of a micro-batch of this rank.
  uint64_t RowOf(uint64_t micro_batch, uint64_t i) const {
    return data_.RowAt(PositionOf(micro_batch, i));
  }
  /// Returns the first rows of the data that the step takes, at most so many.
  std::vector<uint64_t> FirstRows(uint64_t most) const;

  /// Says that the step that was read is done.
  void Done() { consumed_samples_ += NextSamples(); }
  /// Says that so many steps are not computed. Their rows count as taken.
  void PassOver(uint64_t steps);
  /// Returns how many rows the steps that are done took, of all ranks.
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
