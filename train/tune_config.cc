#include "train/tune_config.h"

#include <nlohmann/json.hpp>

namespace penstock::train {

std::string ConfigFragment(const TunePoint& point) {
  nlohmann::ordered_json fragment;
  nlohmann::ordered_json& options = fragment["aio"];
  options["block_size"] = point.block_size.value;
  options["queue_depth"] = point.queue_depth;
  for (const char* name : {"thread_count", "intra_op_parallelism", "num_threads"}) {
    options[name] = point.thread_count;
  }
  // As ProbeRig leaves them: an earlier file may have set them, and for another engine.
  const aio::EngineOptions measured;
  options["single_submit"] = measured.single_submit;
  options["overlap_events"] = measured.overlap_events;
  nlohmann::ordered_json& engine = fragment["penstock"]["aio"];
  engine["engine"] = aio::ToString(point.engine);
  engine["sqpoll"] = measured.sqpoll;
  engine["iopoll"] = measured.iopoll;
  engine["registered_buffers"] = "auto";
  engine["simulate"] = nullptr;
  return fragment.dump(2) + "\n";
}

}  // namespace penstock::train
