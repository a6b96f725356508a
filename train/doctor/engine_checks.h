// Which I/O engines this process can have, and why not the others.
//
// Threads: any.
#pragma once

#include <string>

#include "aio/uring_facts.h"
#include "base/result.h"
#include "train/doctor/check.h"
#include "train/doctor/machine_files.h"

namespace penstock::train {

/// What was found when the engines were asked for.
struct EngineFacts {
  aio::UringFacts uring;
  Status libaio;
  Status threads;
  Result<std::string> automatic;  ///< what "auto" takes, and why
};
EngineFacts ReadEngineFacts();

Checks EngineChecks(const EngineFacts& facts, const MachineFiles& files);

}  // namespace penstock::train
