#include "train/tune_measure.h"

#include <algorithm>
#include <utility>

#include "aio/probe.h"

namespace penstock::train {
namespace {

using Clock = std::chrono::steady_clock;

/// One turn of one configuration: all directions, or nothing where the deadline falls into it.
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

/// "grid 12/186  io_uring, 1 MiB x 32: read 2.31, write 2.20, both 2.25 GB/s  remaining 1:05".
std::string ProgressText(const MeasureOptions& options, const PointProbes& last, size_t done,
                         size_t turns, Seconds elapsed) {
  std::string speeds;
  for (size_t i = 0; !last.unavailable && i < kDirections.size(); ++i) {
    speeds += fmt::format("{} {} {:.2f}", i == 0 ? ":" : ",", ToString(kDirections[i]),
                          last.probes[i].back().gbps);
  }
  const double a_turn = elapsed.count() / static_cast<double>(done);
  const double limit = Seconds(options.deadline - Clock::now()).count();
  const double remaining = std::min(a_turn * static_cast<double>(turns - done), limit);
  return fmt::format("{} {}/{}  {}, {} x {}{} GB/s  remaining {}", options.what, done, turns,
                     ToString(last.point.engine), BlockText(last.point.block_size),
                     last.point.queue_depth, speeds, DurationText(remaining));
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
