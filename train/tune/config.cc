#include "train/tune/config.h"

#include <nlohmann/json.hpp>

namespace penstock::train {

namespace {

/// Of a drive whose directions share one way, reading and writing together are hardly faster than
/// one of them.
constexpr double kSharedShare = 0.75;

nlohmann::ordered_json DriveJson(const PointSummary& chosen) {
  const double read = chosen[Direction::kRead].gbps;
  const double write = chosen[Direction::kWrite].gbps;
  const double both = chosen[Direction::kBoth].gbps;
  if (read <= 0 || write <= 0) return nullptr;
  const bool shared = both < kSharedShare * (read + write);
  // Of a shared way only what it moves in both directions together counts.
  return {{"read_gbps", shared ? both : read}, {"write_gbps", write}, {"shared", shared}};
}

}  // namespace

std::string ConfigFragment(const PointSummary& chosen) {
  nlohmann::ordered_json fragment;
  nlohmann::ordered_json& options = fragment["aio"];
  const aio::EngineOptions measured = chosen.point.options();
  options["block_size"] = measured.block_size.value;
  options["queue_depth"] = measured.queue_depth;
  for (const char* name : {"thread_count", "intra_op_parallelism", "num_threads"}) {
    options[name] = measured.thread_count;
  }
  // What is at its default as well: an earlier file may have set it, and for another engine.
  options["single_submit"] = measured.single_submit;
  options["overlap_events"] = measured.overlap_events;
  fragment["penstock"]["drive"] = DriveJson(chosen);
  nlohmann::ordered_json& engine = fragment["penstock"]["aio"];
  engine["engine"] = aio::ToString(measured.kind);
  engine["sqpoll"] = measured.sqpoll;
  engine["iopoll"] = measured.iopoll;
  engine["registered_buffers"] = "auto";
  engine["simulate"] = nullptr;
  return fragment.dump(2) + "\n";
}

}  // namespace penstock::train
