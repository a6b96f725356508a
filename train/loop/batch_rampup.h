// The global batch of each step, in samples (sequences): the same for all, or growing by Megatron's
// rule (penstock.rampup_batch_size).
//
// With c samples consumed by the steps before, a step takes start + increment · ⌊c / (samples / n)⌋
// of them, where n = (end - start) / increment; from c = samples on it takes end. The division is
// that of real numbers, carried out exactly: ⌊c · n / samples⌋. A value. Threads: any.
#pragma once

#include <cstdint>
#include <optional>

#include "config/config.h"

namespace penstock::train {

class BatchRampup {
 public:
  /// `batch`: train_batch_size, at least 1. `rampup`: how it is reached, as a Config has it, which
  /// was checked; none: every step takes `batch`.
  explicit BatchRampup(uint64_t batch, const std::optional<config::RampupConfig>& rampup = {});

  /// Returns how many samples the step takes before which `consumed` were taken.
  uint64_t BatchAfter(uint64_t consumed) const;
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
