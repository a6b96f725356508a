#include "train/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace penstock::train {
namespace {

/// "1:05", "2:03:00".
std::string Duration(double seconds) {
  const auto total = static_cast<uint64_t>(std::llround(std::max(seconds, 0.0)));
  const uint64_t hours = total / 3600;
  const uint64_t minutes = total / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
  return fmt::format("{}:{:02}", minutes, total % 60);
}

}  // namespace

std::string ProgressLine(const StepRow& row, uint64_t last_step, double seconds_per_step) {
  const auto bytes = static_cast<double>(row.nvme_read_bytes + row.nvme_write_bytes);
  const double remaining =
      row.step < last_step ? static_cast<double>(last_step - row.step) * seconds_per_step : 0;
  return fmt::format("step {}/{}  loss {:.4f}  {:.0f} tokens/s  nvme {:.2f} GB/s  remaining {}{}",
                     row.step, last_step, row.loss, row.tokens_per_s,
                     bytes / std::max(row.step_s, 1e-9) / 1e9, Duration(remaining),
                     row.skipped ? "  skipped" : "");
}

void Progress::Report(const StepRow& row) {
  seconds_ += row.step_s;
  ++steps_;
  const bool last = row.step == options_.last_step;
  if (!options_.terminal && !last && (options_.every == 0 || row.step % options_.every != 0))
    return;
  const std::string line =
      ProgressLine(row, options_.last_step, seconds_ / static_cast<double>(steps_));
  // Carriage return and "erase to the end of the line" (ECMA-48 EL) rewrite the line in place.
  std::fputs((options_.terminal ? "\r\x1b[K" + line : "penstock: " + line + "\n").c_str(),
             options_.out);
  std::fflush(options_.out);
  line_open_ = options_.terminal;
}

void Progress::Finish() {
  if (line_open_) std::fputs("\n", options_.out);
  std::fflush(options_.out);
  line_open_ = false;
}

}  // namespace penstock::train
