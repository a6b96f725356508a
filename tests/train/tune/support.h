// Results of a tuning that never happened, for the tests of what is made of them.
#pragma once

#include <vector>

#include "train/tune/table.h"

namespace penstock::train {

inline PointSummary Row(Bytes block_size, int queue_depth, double gbps,
                        aio::EngineKind engine = aio::EngineKind::kUring) {
  PointSummary row{.point = MakePoint(engine, block_size, queue_depth),
                   .round_gbps = {gbps, gbps, gbps},
                   .registration = "aio buffers are registered: 64.0 MiB, pieces: 1"};
  row.directions.fill({.gbps = gbps,
                       .gbps_min = gbps,
                       .gbps_max = gbps,
                       .median_us = 1000,
                       .p99_us = 2000,
                       .cpu_s_per_gb = 0.05});
  return row;
}

/// A whole report on the full grid: larger blocks and deeper queues are faster up to 2 GB/s.
inline TuneReport Report() {
  TuneReport report{.folder = "/mnt/<nvme> & \"co\"",
                    .date = "2025-01-31 12:00 UTC",
                    .plan = *MakePlan(FullScale(), std::nullopt, aio::EngineKind::kUring),
                    .written = 50_GiB,
                    .elapsed = std::chrono::seconds(200)};
  for (const TunePoint& point : report.plan.grid) {
    const double gbps = std::min(static_cast<double>(point.in_flight().value) / 2e6, 2.0);
    report.grid.push_back(Row(point.block_size, point.queue_depth, gbps));
  }
  report.choice = *ChoosePoint(report.grid);
  const TunePoint& point = report.grid[report.choice.recommended].point;
  report.engines = {
      Row(point.block_size, point.queue_depth, 2.0),
      {.point = MakePoint(aio::EngineKind::kLibaio, point.block_size, point.queue_depth),
       .reason = "the kernel has no libaio"}};
  return report;
}

}  // namespace penstock::train
