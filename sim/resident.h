// A step of training that fits: weights, gradients and states on the device, updated there.
//
// Such a step makes no decisions, so that no clock is needed: compute and link each do one piece of
// work after the other, as zero/engine/resident_engine enqueues them. Losses, norm and sums take no
// time, as in sim/step.h.
//
// Plain functions.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/layout.h"
#include "sim/clock.h"
#include "sim/link.h"
#include "zero/model.h"
#include "zero/plan/exchange_options.h"

namespace penstock::sim {

/// The plan of one rank; with several, all do the same at the same time.
struct ResidentPlan {
  const zero::ModelSpec& model;
  const offload::ShardLayout& layout;
  std::vector<Seconds> compute;  ///< seconds of each use in the step
  Seconds update = 0;            ///< seconds for all tiles of the shard
  bool overlap = true;           ///< gathers begin while updates of later modules run
  uint64_t micro_batches = 1;    ///< micro-batches of this rank in a step: equal parts of each use
  zero::ExchangeOptions exchange;
};

/// Returns the time from one update to the next.
Seconds ResidentStep(const ResidentPlan& plan, const LinkSpeed& link);

}  // namespace penstock::sim
