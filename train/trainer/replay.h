// `penstock replay`: recomputes steps of a run, bit for bit, with all checks on, and names the
// cause of a failure (docs/numerics.md).
//
// The ordinary loop trains the steps in a separate run that begins with a commit of the run
// (train/trainer/start_plan.h) and lies in a scratch folder. The run itself is only read; its
// lock is held, so that no process trains or removes it meanwhile.
//
// Threads: the main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/units.h"

namespace penstock::train {

struct ReplayCommand {
  std::string run;
  std::string from;     ///< "latest", the step of the newest commit, or the name of a snapshot
  uint64_t to = 0;      ///< the last step
  bool fp32 = false;    ///< compute in fp32 instead of the run's dtype
  std::string scratch;  ///< folder for the replay's state; empty: RUN
  std::optional<Bytes> device_memory = {};  ///< as of a training
  std::optional<Bytes> host_memory = {};
};

struct ReplayOutcome {
  std::string text;   ///< for stdout
  bool equal = true;  ///< the compared rows equal those of the run
};

/// Errors: kInvalidArgument if the steps cannot be replayed; those of a resumed training, after
/// which nothing is left of the replay; kCancelled.
Result<ReplayOutcome> RunReplay(const ReplayCommand& command);

}  // namespace penstock::train
