#include "train/tune/config.h"

#include <nlohmann/json.hpp>

namespace penstock::train {

std::string ConfigFragment(const TunePoint& point) {
  nlohmann::ordered_json fragment;
  nlohmann::ordered_json& options = fragment["aio"];
  const aio::EngineOptions measured = point.options();
  options["block_size"] = measured.block_size.value;
  options["queue_depth"] = measured.queue_depth;
  for (const char* name : {"thread_count", "intra_op_parallelism", "num_threads"}) {
    options[name] = measured.thread_count;
  }
  // What is at its default as well: an earlier file may have set it, and for another engine.
  options["single_submit"] = measured.single_submit;
  options["overlap_events"] = measured.overlap_events;
  nlohmann::ordered_json& engine = fragment["penstock"]["aio"];
  engine["engine"] = aio::ToString(measured.kind);
  engine["sqpoll"] = measured.sqpoll;
  engine["iopoll"] = measured.iopoll;
  engine["registered_buffers"] = "auto";
  engine["simulate"] = nullptr;
  return fragment.dump(2) + "\n";
}

}  // namespace penstock::train
