#include "train/process/status_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace penstock::train {

void StatusLine::Show(const std::string& line) {
  // Carriage return and "erase to the end of the line" (ECMA-48 EL) rewrite the line in place.
  std::fputs((terminal_ ? "\r\x1b[K" + line : "penstock: " + line + "\n").c_str(), out_);
  std::fflush(out_);
  line_open_ = terminal_;
}

void StatusLine::Finish() {
  if (line_open_) std::fputs("\n", out_);
  std::fflush(out_);
  line_open_ = false;
}

std::string ProgressBar(double share) {
  constexpr size_t kWidth = 8;
  const auto done = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * kWidth);
  return fmt::format("[{:#<{}}{:-<{}}]", "", done, "", kWidth - done);
}

std::string DurationText(double seconds) {
  const auto total = static_cast<uint64_t>(std::llround(std::max(seconds, 0.0)));
  const uint64_t hours = total / 3600;
  const uint64_t minutes = total / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
  return fmt::format("{}:{:02}", minutes, total % 60);
}

}  // namespace penstock::train
