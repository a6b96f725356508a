// The prediction of sim/ for a measured step.
#pragma once

#include <cstdint>
#include <optional>

#include "aio/aio.h"
#include "base/result.h"
#include "bench/step_machine.h"

namespace penstock::bench {

/// What the parts of a step take by themselves, measured in the same round. Seconds.
struct MeasuredParts {
  double forward_s = 0;
  double backward_s = 0;
  double adam_s = 0;    ///< seconds for all states, on all cores
  double copies_s = 0;  ///< seconds for a step's weights and gradients, on one core
  double cores = 1;
  double io_s = 0;      ///< seconds for a step's bytes
  double io_cpu_s = 0;  ///< the processor's part of that
  double io_bytes = 0;
  std::optional<aio::SimulatedDrive> simulate;  ///< nullopt: as fast as io_s, in both directions
};

/// The seconds of a step in the steady state. The time of forward and of backward is dealt out to
/// the modules in proportion to their elements.
Result<double> PredictStep(const StepModel& model, const StepMachine& machine,
                           const MeasuredParts& parts);

}  // namespace penstock::bench
