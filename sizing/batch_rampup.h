// The global batch of each step, in samples (sequences): the same for all, or growing by Megatron's
// rule (penstock.rampup_batch_size).
//
// With c samples consumed by the steps before, a step takes start + increment · ⌊c / (samples / n)⌋
// of them, where n = (end - start) / increment; from c = samples on it takes end. The division is
// that of real numbers, carried out exactly: ⌊c · n / samples⌋. A value. Threads: any.
#pragma once

#include <cstdint>
#include <optional>

namespace penstock::train {

/// How a batch grows: penstock.rampup_batch_size.
struct BatchGrowth {
  uint64_t start = 0;      ///< the first batch, at least 1
  uint64_t increment = 0;  ///< at least 1; divides what is missing from `start` to the last batch
  uint64_t samples = 0;    ///< samples after which the batch is the last one
};

class BatchRampup {
 public:
  /// `batch`: train_batch_size, at least 1. `growth`: how it is reached, which was checked; none:
  /// every step takes `batch`.
  explicit BatchRampup(uint64_t batch, const std::optional<BatchGrowth>& growth = {});

  /// Returns how many samples the step takes before which `consumed` were taken.
  uint64_t BatchAfter(uint64_t consumed) const;
  /// Steps that follow each other and take as many samples each.
  struct Stretch {
    uint64_t batch = 0;
    uint64_t steps = 0;  ///< at least 1
  };
  /// Returns the longest stretch that begins after `consumed` samples.
  Stretch StretchAfter(uint64_t consumed) const;
  /// Returns the number of steps, from the first one on, that take no more than `samples` samples
  /// together. Takes a time in proportion to the different batches that these steps have.
  uint64_t StepsWithin(uint64_t samples) const;

 private:
  /// Returns before how many consumed samples the batch is that of BatchAfter(consumed).
  uint64_t EndOfBatch(uint64_t consumed) const;

  uint64_t start_;
  uint64_t end_;
  uint64_t increment_ = 1;
  uint64_t increments_ = 0;
  uint64_t samples_ = 0;
};

}  // namespace penstock::train
