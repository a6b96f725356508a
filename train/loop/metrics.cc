#include "train/loop/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace penstock::train {

void Measure(const Reading& begin, const Reading& end, const ModelCost& cost, StepRow* row) {
  row->step_s = ToSeconds(end.time - begin.time);
  // The bound only prevents a division by zero if the clock stood still.
  const double seconds = std::max(row->step_s, 1e-9);
  row->tokens_per_s = static_cast<double>(row->tokens) / seconds;
  row->tflops = cost.FlopsPerStep(row->tokens) / seconds / 1e12;
  row->hardware_tflops = cost.HardwareFlopsPerStep(row->tokens) / seconds / 1e12;
  row->compute_s = ToSeconds(end.activity.compute - begin.activity.compute);
  row->io_wait_s = ToSeconds(end.activity.io_wait - begin.activity.io_wait);
  row->optimizer_s = ToSeconds(end.activity.optimizer - begin.activity.optimizer);
  row->comm_wait_s = ToSeconds(end.activity.comm_wait - begin.activity.comm_wait);
  row->device_peak_bytes = end.device_peak.value;
  row->host_peak_bytes = end.host_peak.value;
  row->nvme_read_bytes = end.counters.nvme_read_bytes - begin.counters.nvme_read_bytes;
  row->nvme_write_bytes = end.counters.nvme_write_bytes - begin.counters.nvme_write_bytes;
}

std::string LossText(double loss) { return std::isnan(loss) ? "nan" : fmt::format("{:.4f}", loss); }

}  // namespace penstock::train
