#include "train/tune/table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "train/process/status_line.h"

namespace penstock::train {
namespace {

constexpr const char* kRowFormat =
    "{:<2} {:<9} {:>8} {:>6} {:>8}  {:>18} {:>18} {:>18}  {:>13} {:>13} {:>13}  {:>9} {:>10} "
    "{:>9}\n";

std::string SpeedCell(const DirectionSummary& summary) {
  return fmt::format("{:.2f} ({:.2f}-{:.2f})", summary.gbps, summary.gbps_min, summary.gbps_max);
}

/// Milliseconds.
std::string LatencyCell(const DirectionSummary& summary) {
  return fmt::format("{:.2f}/{:.2f}", summary.median_us / 1e3, summary.p99_us / 1e3);
}

std::string Cells(const PointSummary& row, const char* mark) {
  const auto& [read, write, both] = row.directions;
  return fmt::format(kRowFormat, mark, ToString(row.point.engine), BlockText(row.point.block_size),
                     row.point.queue_depth, row.point.thread_count, SpeedCell(read),
                     SpeedCell(write), SpeedCell(both), LatencyCell(read), LatencyCell(write),
                     LatencyCell(both), fmt::format("{:.3f}", read.cpu_s_per_gb),
                     fmt::format("{:.3f}", write.cpu_s_per_gb),
                     fmt::format("{:.3f}", both.cpu_s_per_gb));
}

std::string Row(const PointSummary& row, const char* mark) {
  if (row.measured()) return Cells(row, mark);
  return fmt::format("{:<2} {:<9} {:>8} {:>6} {:>8}  not measured: {}\n", mark,
                     ToString(row.point.engine), BlockText(row.point.block_size),
                     row.point.queue_depth, row.point.thread_count, row.reason);
}

std::string SpeedsText(const PointSummary& row) {
  return fmt::format("read {:.2f}, write {:.2f}, both {:.2f} GB/s (combined {:.2f})",
                     row[Direction::kRead].gbps, row[Direction::kWrite].gbps,
                     row[Direction::kBoth].gbps, CombinedGbps(row));
}

/// The points that the grid leaves out, as "4 MiB x 64, 4 MiB x 128".
std::string LeftOutText(const TunePlan& plan) {
  std::string points;
  for (const TunePoint& point : plan.left_out) {
    points += fmt::format("{}{} x {}", points.empty() ? "" : ", ", BlockText(point.block_size),
                          point.queue_depth);
  }
  if (points.empty()) return {};
  return fmt::format("Left out, as more than {} would be in flight: {}.\n",
                     ToString(plan.in_flight_limit), points);
}

/// Whether the buffers were registered: one line, or several if it changed on the way.
std::string RegistrationText(std::span<const PointSummary> rows) {
  std::set<std::string> lines;
  for (const PointSummary& row : rows) {
    if (row.measured()) lines.insert(row.registration);
  }
  return fmt::format("{}.\n", fmt::join(lines, ".\n"));
}

std::string SpreadText(const TuneReport& report) {
  const double percent = 100 * TypicalSpread(report.grid);
  std::string text =
      fmt::format("Between rounds, the speed of one configuration differs by {:.0f} %.", percent);
  if (percent > 10) {
    text += " Smaller differences than that mean nothing here: the drive is throttled or in use.";
  }
  return text + "\n";
}

std::string ChoiceText(const TuneReport& report) {
  const PointSummary& ceiling = report.grid[report.choice.ceiling];
  const PointSummary& chosen = report.grid[report.choice.recommended];
  const TunePoint& point = Recommended(report);
  std::string text = fmt::format("Ceiling:     {} x {}: {}\n", BlockText(ceiling.point.block_size),
                                 ceiling.point.queue_depth, SpeedsText(ceiling));
  text += fmt::format("Recommended: {} x {}: {}, {:.1f} % of the ceiling, {} in flight\n",
                      BlockText(chosen.point.block_size), chosen.point.queue_depth,
                      SpeedsText(chosen), 100 * CombinedGbps(chosen) / CombinedGbps(ceiling),
                      ToString(chosen.point.in_flight()));
  text += fmt::format("             engine {}, {} thread{}\n", ToString(point.engine),
                      point.thread_count, point.thread_count == 1 ? "" : "s");
  return text;
}

}  // namespace

const PointSummary& RecommendedSummary(const TuneReport& report) {
  return report.engines[report.engine];
}

const TunePoint& Recommended(const TuneReport& report) { return RecommendedSummary(report).point; }

std::string RoundsText(const TuneReport& report) {
  const auto planned = static_cast<size_t>(report.plan.scale.rounds);
  size_t least = planned;
  size_t most = 0;
  for (const PointSummary& row : report.grid) {
    if (!row.measured()) continue;
    least = std::min(least, row.round_gbps.size());
    most = std::max(most, row.round_gbps.size());
  }
  if (least == planned) return fmt::format("{} rounds", planned);
  if (least == most) return fmt::format("{} of {} rounds", least, planned);
  return fmt::format("{} to {} of {} rounds", least, most, planned);
}

std::string TableText(std::span<const PointSummary> rows, size_t ceiling, size_t chosen) {
  std::string text = fmt::format(kRowFormat, "", "engine", "block", "depth", "threads", "read GB/s",
                                 "write GB/s", "both GB/s", "read ms", "write ms", "both ms",
                                 "read s/GB", "write s/GB", "both s/GB");
  for (size_t i = 0; i < rows.size(); ++i) {
    std::string mark = i == chosen ? ">" : "";
    if (i == ceiling) mark += "^";
    text += Row(rows[i], mark.c_str());
  }
  return text;
}

std::string ToText(const TuneReport& report) {
  std::string text = fmt::format(
      "{}, {}, a file of {}, {}\n"
      "GB/s (10^9): median (least-most of the rounds); both: reads and writes together. ms: "
      "latency "
      "of a block, median/p99.\n"
      "s/GB: CPU seconds of the program per GB. > recommended, ^ ceiling.\n\n",
      report.folder, report.date, ToString(report.plan.scale.file_size), RoundsText(report));
  text += TableText(report.grid, report.choice.ceiling, report.choice.recommended);
  text += fmt::format("\nEngines and threads at {} x {}, measured together:\n",
                      BlockText(Recommended(report).block_size), Recommended(report).queue_depth);
  // Only the choice is marked: the ceiling is one of the grid.
  text += TableText(report.engines, report.engines.size(), report.engine);
  text += fmt::format("\n{}{}{}{}", LeftOutText(report.plan), RegistrationText(report.grid),
                      SpreadText(report), ChoiceText(report));
  text += fmt::format("Written in all: {} ({} bytes), in {}\n", ToString(report.written),
                      report.written.value, DurationText(report.elapsed.count()));
  return text;
}

}  // namespace penstock::train
