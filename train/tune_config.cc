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
  fragment["penstock"]["aio"]["engine"] = aio::ToString(point.engine);
  return fragment.dump(2) + "\n";
}

}  // namespace penstock::train
