// Puts each step into the trace.
//
// Threads: as of a StepObserver.
#pragma once

#include "base/trace.h"
#include "run/observers/step_observer.h"

namespace penstock::train {

class StepSpans final : public StepObserver {
 public:
  /// `trace` outlives the object.
  explicit StepSpans(Trace& trace)
      : trace_(trace), steps_(trace.AddRow(TraceGroup::kSteps, "steps")) {}

  Status AfterRow(const ClosedRow& closed) override;

 private:
  Trace& trace_;
  const Trace::Row steps_;
};

}  // namespace penstock::train
