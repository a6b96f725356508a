#include "train/loop/progress.h"

#include <fmt/format.h>

#include <algorithm>

namespace penstock::train {

std::string ProgressLine(const StepRow& row, uint64_t last_step, double seconds_per_step) {
  const auto bytes = static_cast<double>(row.nvme_read_bytes + row.nvme_write_bytes);
  const double remaining =
      row.step < last_step ? static_cast<double>(last_step - row.step) * seconds_per_step : 0;
  return fmt::format("step {}/{}  loss {}  {:.0f} tokens/s  nvme {:.2f} GB/s  remaining {}{}",
                     row.step, last_step, LossText(row.loss), row.tokens_per_s,
                     bytes / std::max(row.step_s, 1e-9) / 1e9, DurationText(remaining),
                     row.skipped ? "  skipped" : "");
}

void Progress::Report(const StepRow& row) {
  seconds_ += row.step_s;
  ++steps_;
  const bool last = row.step == options_.last_step;
  if (!options_.terminal && !last && (options_.every == 0 || row.step % options_.every != 0))
    return;
  line_.Show(ProgressLine(row, options_.last_step, seconds_ / static_cast<double>(steps_)));
}

}  // namespace penstock::train
