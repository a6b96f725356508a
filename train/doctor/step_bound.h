// What bounded the steps of a run, from sums over its rows. The rules stand in docs/doctor.md: the
// floors of a step are the plan's (train/plan/step_floors.h), with what was measured in place of
// what is predicted.
//
// Plain values; threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/doctor/check.h"

namespace penstock::train {

/// Sums over rows of metrics.jsonl; seconds and bytes.
struct StepFigures {
  uint64_t rows = 0;
  double step_s = 0;
  double compute_s = 0;
  double io_wait_s = 0;
  double optimizer_s = 0;
  double comm_wait_s = 0;  ///< 0 with one rank
  double read_bytes = 0;   ///< of nvme
  double write_bytes = 0;
  std::optional<double> host_share = {};  ///< peak of host memory over its limit; nothing: unknown
  std::optional<double> overlap = {};     ///< share of optimizer_s that passed under computation
};

enum class StepBound {
  kTooFewSteps,
  kCommunication,
  kIo,
  kBalanced,  ///< drive and computation need the same time
  kOptimizer,
  kUpdatesAlone,  ///< updates with nothing running beside them
  kCompute,
  kHostMemory,  ///< too small to read ahead
  kSlowIo,      ///< the drive is waited for, and is far below its speed
  kNothing,     ///< in particular
};
const char* ToString(StepBound bound);

/// What the drive needs that the steps are held against.
struct DriveNeed {
  std::optional<double> seconds;  ///< DriveTime of the bytes (train/plan/step_floors.h)
  std::string note = {};          ///< for which of the bytes; empty: for all
  std::string how_to_know = {};   ///< what to do if it is not known
};

StepBound FindBound(const StepFigures& figures, const std::optional<double>& drive_s);

/// The check "bound by": what bounded the steps, the figures this follows from, and what to change.
Check BoundCheck(const StepFigures& figures, const DriveNeed& need);

}  // namespace penstock::train
