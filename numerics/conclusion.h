// The conclusion of a replay from its steps (docs/numerics.md has the rules): the cause is fp16's
// range, the data, the weights, or the learning rate.
//
// A value without I/O. Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "numerics/replayed_steps.h"

namespace penstock::train {

enum class Cause { kNothing, kFp16Range, kData, kWeights, kLearningRate };

struct ReplayEvidence {
  DType dtype = DType::kFloat32;          ///< dtype of the run
  uint64_t vocabulary = 0;                ///< 0: unknown
  uint64_t from = 0;                      ///< step of the commit at which the replay began
  std::vector<ReplayedStep> steps;        ///< the run's steps, in order
  std::vector<ReplayedStep> before = {};  ///< the last steps up to the commit, from rows
  std::vector<Report> reports;
  std::optional<std::string> stopped = {};  ///< why these steps ended before the last one
  /// The same steps in fp32, of a run in another dtype, if they were computed.
  std::optional<std::vector<ReplayedStep>> in_fp32 = {};
  std::string rate_key = "optimizer.params.lr";  ///< the key of the learning rate
  /// What is wrong with the weights of the commit, a line for each tensor.
  std::vector<std::string> commit_faults = {};
};

struct Conclusion {
  Cause cause = Cause::kNothing;
  std::string text;                   ///< one line
  std::vector<std::string> evidence;  ///< lines
  std::string advice;                 ///< one line; empty for kNothing
};

/// Returns the first of these steps whose numbers ended the run, or would have: its loss is not
/// finite, or no loss scale fixes its gradient any more. Nothing: there is none.
const ReplayedStep* FirstFailure(const ReplayEvidence& evidence);

/// Whether anything speaks against the run, so that the weights of the commit are worth a look.
bool IsSuspicious(const ReplayEvidence& evidence);

Conclusion Conclude(const ReplayEvidence& evidence);

}  // namespace penstock::train
