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

void PhaseSums::Add(const StepRow& row) {
  forward_s += row.forward_s.value_or(0);
  backward_s += row.backward_s.value_or(0);
  step_s += row.step_s;
  ++steps;
}

std::string PhaseText(const PhaseSums& phases) {
  const double to_ms = 1e3 / static_cast<double>(phases.steps);
  const double rest = std::max(phases.step_s - phases.forward_s - phases.backward_s, 0.0);
  return fmt::format("forward {:.2f} ms  backward {:.2f} ms  step {:.2f} ms",
                     phases.forward_s * to_ms, phases.backward_s * to_ms, rest * to_ms);
}

Status Progress::AfterRow(const ClosedRow& closed) {
  const StepRow& row = closed.row;
  seconds_ += row.step_s;
  ++steps_;
  phases_.Add(row);
  const bool last = row.step == options_.last_step;
  if (!options_.terminal && !last && (options_.every == 0 || row.step % options_.every != 0))
    return {};
  std::string line = ProgressLine(row, options_.last_step, seconds_ / static_cast<double>(steps_));
  if (options_.breakdown) line += "  " + PhaseText(phases_);
  phases_ = {};
  line_.Show(line);
  return {};
}

}  // namespace penstock::train
