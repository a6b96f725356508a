// `penstock replay`: computes steps of a run again, bit for bit, with everything watched, and
// concludes what was wrong with them (docs/numerics.md).
//
// The steps are trained by the ordinary loop, in a run of their own that begins with a commit of
// the run (train/trainer/prepared_replay.h) and lies in a scratch folder. The run is read and
// nothing else; its lock is held, so that nobody trains or removes it meanwhile.
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
  bool fp32 = false;    ///< compute in fp32, whatever the run computes in
  std::string scratch;  ///< folder for the replay's state; empty: RUN
  std::optional<Bytes> device_memory = {};  ///< as of a training
  std::optional<Bytes> host_memory = {};
};

struct ReplayOutcome {
  std::string text;   ///< for stdout
  bool equal = true;  ///< the rows are those of the run, as far as they are compared
};

/// Errors: kInvalidArgument for what cannot be replayed; those of a training that is resumed, and
/// nothing is left of the replay then; kCancelled.
Result<ReplayOutcome> RunReplay(const ReplayCommand& command);

}  // namespace penstock::train
