// Other ways to train the same model with the same global batch: placements of weights and states,
// micro-batches, homes of activation checkpoints. Each is planned, and the best come first.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/plan/run_plan.h"

namespace penstock::train {

enum class PlanGoal {
  kSpeed,   ///< the shortest step
  kMemory,  ///< the least memory of device and host together
};

/// A training that differs from the given one in these.
struct Alternative {
  config::Config config;
  uint64_t sequence = 0;
  uint32_t ranks = 1;
};

struct Choice {
  Alternative setup;
  std::string changes;   ///< what is other than given, in words; empty: nothing
  uint32_t changed = 0;  ///< how many things are
  RunPlan plan;
};

/// Plans an alternative; returns nothing for one that does not fit.
using Planning = std::function<Result<std::optional<RunPlan>>(const Alternative& setup)>;

/// Plans all, and returns those that fit, the best first; of equal ones that with fewer changes. A
/// placement on nvme needs a path in `given`. Errors: of `planning`, and kInvalidArgument for
/// kSpeed if no plan knows its time.
Result<std::vector<Choice>> Choose(const Alternative& given, PlanGoal goal,
                                   const Planning& planning);

/// Where nothing that Choose walks fits: what does with a shorter sequence, and on more ranks, each
/// by the smallest change. The global batch stays, unless so many ranks cannot share it. Empty:
/// nothing found.
Result<std::vector<Choice>> ChooseSmaller(const Alternative& given, const Planning& planning);

}  // namespace penstock::train
