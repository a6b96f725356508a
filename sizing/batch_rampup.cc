#include "sizing/batch_rampup.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace penstock::train {
namespace {

// A product of two counts.
__extension__ using Product = unsigned __int128;

}  // namespace

BatchRampup::BatchRampup(uint64_t batch, const std::optional<BatchGrowth>& growth)
    : start_(batch), end_(batch) {
  PENSTOCK_CHECK(batch > 0);
  if (!growth) return;
  start_ = growth->start;
  increment_ = growth->increment;
  samples_ = growth->samples;
  PENSTOCK_CHECK(start_ > 0 && start_ <= end_ && increment_ > 0);
  increments_ = (end_ - start_) / increment_;
}

uint64_t BatchRampup::BatchAfter(uint64_t consumed) const {
  if (consumed >= samples_) return end_;
  return start_ + increment_ * static_cast<uint64_t>(Product{consumed} * increments_ / samples_);
}

uint64_t BatchRampup::EndOfBatch(uint64_t consumed) const {
  if (consumed >= samples_) return std::numeric_limits<uint64_t>::max();
  if (increments_ == 0) return samples_;
  // The least c with ⌊c · n / samples⌋ above this one's.
  const Product next = Product{consumed} * increments_ / samples_ + 1;
  return static_cast<uint64_t>((next * samples_ + increments_ - 1) / increments_);
}

BatchRampup::Stretch BatchRampup::StretchAfter(uint64_t consumed) const {
  const uint64_t batch = BatchAfter(consumed);
  return {.batch = batch, .steps = (EndOfBatch(consumed) - consumed - 1) / batch + 1};
}

uint64_t BatchRampup::StepsWithin(uint64_t samples) const {
  uint64_t steps = 0;
  for (uint64_t consumed = 0;;) {
    const Stretch stretch = StretchAfter(consumed);
    const uint64_t whole = (samples - consumed) / stretch.batch;
    steps += std::min(whole, stretch.steps);
    if (whole <= stretch.steps) return steps;
    consumed += stretch.steps * stretch.batch;
  }
}

}  // namespace penstock::train
