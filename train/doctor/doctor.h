// `penstock doctor`: what this machine offers to a training, and what bounded the steps of a run.
//
// Threads: the main thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/doctor/check.h"

namespace penstock::train {

struct DoctorCommand {
  std::vector<std::string> configs;  ///< as those of `train`; none: no configuration is looked at
  std::string nvme_path;             ///< a folder on a drive; empty: none
  std::string bug_report;            ///< file to write; empty: none
  std::string run;                   ///< folder of a run; empty: none
  uint32_t ranks = 1;                ///< of the configuration's training
  uint32_t nodes = 1;                ///< that they run on; divides them
};

struct DoctorOutcome {
  std::string text;  ///< for stdout
  bool failed = false;
};

/// Looks at everything. What cannot be looked at is a check, and no error. Errors: kNotFound if
/// `run` is no run; of reading --config; kInvalidArgument if the report exists; kCancelled after
/// Ctrl-C.
Result<DoctorOutcome> RunDoctor(const DoctorCommand& command);

}  // namespace penstock::train
