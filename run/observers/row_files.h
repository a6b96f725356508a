// Writes the row of each step: metrics.jsonl, and DeepSpeed's CSV files where they are asked for.
//
// The curves come first, because they accept a failed step again and metrics.jsonl does not.
// Threads: as of a StepObserver.
#pragma once

#include "run/observers/step_observer.h"
#include "run/rows/csv_monitor.h"
#include "run/rows/metrics_file.h"

namespace penstock::train {

class RowFiles final : public StepObserver {
 public:
  /// Both outlive the object. `curves`: none without csv_monitor.
  RowFiles(MetricsWriter& rows, CsvMonitor* curves) : rows_(rows), curves_(curves) {}

  Status AfterRow(const ClosedRow& closed) override;
  Status SyncRows() override;

 private:
  MetricsWriter& rows_;
  CsvMonitor* const curves_;
};

}  // namespace penstock::train
