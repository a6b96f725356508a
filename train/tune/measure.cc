#include "train/tune/measure.h"

#include <algorithm>
#include <utility>

#include "aio/probe.h"

namespace penstock::train {
namespace {

using Clock = std::chrono::steady_clock;

/// One turn of one configuration: all directions, or nothing if the deadline falls into it.
Status Measure(PointProbes* point, aio::ProbeFile* file, const MeasureOptions& options) {
  if (point->unavailable) return {};
  Result<aio::ProbeRig> rig = aio::ProbeRig::Create(point->point.options(), file);
  if (!rig.ok()) {
    if (rig.error().code != ErrorCode::kUnavailable) return rig.error();
    point->unavailable = rig.error().message;
    return {};
  }
  point->registration = rig->registration();
  std::array<Probe, kDirections.size()> turn;
  for (size_t i = 0; i < kDirections.size(); ++i) {
    aio::LoopLimit limit = options.limit;
    limit.time = std::min<Seconds>(limit.time, options.deadline - Clock::now());
    PENSTOCK_ASSIGN(turn[i], rig->Measure(kDirections[i], limit, options.stop));
    if (Clock::now() >= options.deadline) return {};
  }
  for (size_t i = 0; i < kDirections.size(); ++i) point->probes[i].push_back(turn[i]);
  return {};
}

/// "2.31/2.20/2.25 GB/s": read, write, both.
std::string SpeedsText(const PointProbes& last) {
  if (last.unavailable) return "not to be had";
  const auto& [read, write, both] = last.probes;
  return fmt::format("{:.2f}/{:.2f}/{:.2f} GB/s", read.back().gbps, write.back().gbps,
                     both.back().gbps);
}

/// "[##------] grid 72/285  1:05 left  io_uring 1 MiB x 32: 2.31/2.20/2.25 GB/s", without the bar
/// where lines are not rewritten. It fits into 80 columns.
std::string ProgressText(const MeasureOptions& options, const PointProbes& last, size_t done,
                         size_t turns, Seconds elapsed) {
  const double share = static_cast<double>(done) / static_cast<double>(turns);
  const double limit = Seconds(options.deadline - Clock::now()).count();
  const double left = std::min(elapsed.count() * (1 / share - 1), limit);
  return fmt::format("{}{} {}/{}  {} left  {} {} x {}: {}",
                     options.terminal ? ProgressBar(share) + " " : "", options.what, done, turns,
                     DurationText(left), ToString(last.point.engine),
                     BlockText(last.point.block_size), last.point.queue_depth, SpeedsText(last));
}

}  // namespace

Result<std::vector<PointProbes>> MeasurePoints(const std::vector<TunePoint>& points,
                                               aio::ProbeFile* file, const MeasureOptions& options,
                                               StatusLine* progress) {
  std::vector<PointProbes> measured;
  for (const TunePoint& point : points) measured.push_back({.point = point});
  const Clock::time_point start = Clock::now();
  const size_t turns = points.size() * static_cast<size_t>(options.rounds);
  const size_t every = options.terminal ? 1 : std::max<size_t>(turns / 10, 1);
  if (start >= options.deadline) return measured;
  size_t done = 0;
  for (int round = 0; round < options.rounds; ++round) {
    for (const size_t index : RoundOrder(points.size(), round)) {
      PENSTOCK_TRY(Measure(&measured[index], file, options));
      if (Clock::now() >= options.deadline) return measured;
      if (++done % every != 0) continue;
      progress->Show(ProgressText(options, measured[index], done, turns, Clock::now() - start));
    }
  }
  return measured;
}

}  // namespace penstock::train
