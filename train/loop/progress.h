// Shows the progress of a training: one rewritten line on a terminal, plain lines elsewhere.
//
// Threads: as of a StepObserver.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "run/observers/step_observer.h"
#include "train/loop/metrics.h"
#include "train/process/status_line.h"

namespace penstock::train {

/// Sums of the times of the parts of steps.
struct PhaseSums {
  double forward_s = 0;
  double backward_s = 0;
  double step_s = 0;  ///< time of all parts
  uint64_t steps = 0;

  void Add(const StepRow& row);
};

class Progress final : public StepObserver {
 public:
  struct Options {
    std::FILE* out = stderr;
    bool terminal = false;   ///< rewrite one line; otherwise one line every `every` steps
    uint64_t every = 10;     ///< plain lines: 0 for none
    bool breakdown = false;  ///< lines have the times of forward, backward and the rest
    uint64_t last_step = 0;  ///< where the run ends
  };
  explicit Progress(Options options) : options_(options), line_(options.out, options.terminal) {}

  Status AfterRow(const ClosedRow& closed) override;
  /// Leaves the cursor at the start of an empty line, for other output.
  void AtEnd(const TrainingEnd&) override { line_.Finish(); }

 private:
  Options options_;
  StatusLine line_;
  double seconds_ = 0;  ///< time of the reported steps
  uint64_t steps_ = 0;
  PhaseSums phases_;  ///< sums of the steps since the last line
};

/// "forward 12.30 ms  backward 25.10 ms  step 3.20 ms", where "step" is the rest: means over the
/// steps, at least one.
std::string PhaseText(const PhaseSums& phases);

/// "step 12/200  loss 5.1234  8192 tokens/s  nvme 1.20 GB/s  remaining 1:05"; bytes count both
/// ways, in 10^9.
std::string ProgressLine(const StepRow& row, uint64_t last_step, double seconds_per_step);

}  // namespace penstock::train
