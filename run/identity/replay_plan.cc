#include "run/identity/replay_plan.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace penstock::train {
namespace {

using Json = nlohmann::ordered_json;

/// Keys of an identity that are the configuration's.
constexpr auto kConfigKeys =
    std::to_array<const char*>({"train_batch_size", "train_micro_batch_size_per_gpu",
                                "gradient_clipping", "optimizer", "scheduler"});
constexpr auto kDTypeKeys = std::to_array<const char*>({"bf16", "fp16", "communication_data_type"});
/// Not taken: on one rank it follows from the other two.
constexpr std::string_view kStepsKey = "gradient_accumulation_steps";
constexpr const char* kWorldKey = "world_size";
constexpr const char* kOrderKey = "gradient_order";

void TakeKey(const Json& identity, const char* key, Json& config) {
  if (identity.contains(key) && !identity[key].is_null()) config[key] = identity[key];
}

bool IsEnabled(const Json& identity, const char* dtype) {
  return identity.contains(dtype) && identity[dtype].value("enabled", false);
}

}  // namespace

std::vector<ReplaySegment> ReplaySegments(const std::vector<RunChange>& changes, uint64_t from,
                                          uint64_t to) {
  std::vector<RunChange> between = changes;
  std::erase_if(between, [from, to](const RunChange& change) {
    return change.step < from || change.step >= to || change.key == kStepsKey;
  });
  std::ranges::stable_sort(between, {}, &RunChange::step);
  std::vector<ReplaySegment> segments = {{.last = to, .changes = {}}};
  for (const RunChange& change : between) {
    const bool begins = segments.size() == 1 ? change.step > from
                                             : change.step > segments[segments.size() - 2].last;
    if (begins) {
      segments.back().last = change.step;
      segments.push_back({.last = to, .changes = {}});
    }
    segments.back().changes.push_back({.key = change.key, .value = change.after});
  }
  return segments;
}

uint64_t StepAfter(uint64_t step, const std::vector<StepRange>& skips) {
  uint64_t next = step + 1;
  // Ranges may touch, in any order.
  for (bool moved = true; moved;) {
    moved = false;
    for (const StepRange& range : skips) {
      if (!range.Has(next)) continue;
      next = range.last + 1;
      moved = true;
    }
  }
  return next;
}

bool IsOfDtype(std::string_view key) {
  return std::ranges::any_of(kDTypeKeys, [&](const char* whole) { return Covers(whole, key); });
}

DType DTypeOf(const std::string& identity) {
  const Json json = Json::parse(identity);
  return IsEnabled(json, "fp16")   ? DType::kFloat16
         : IsEnabled(json, "bf16") ? DType::kBFloat16
                                   : DType::kFloat32;
}

Result<std::string> ReplayConfig(const std::string& identity, const std::string& folder,
                                 bool fp32) {
  const Json json = Json::parse(identity);
  Json config = Json::object();
  for (const char* key : kConfigKeys) TakeKey(json, key, config);
  if (!fp32) {
    for (const char* key : kDTypeKeys) TakeKey(json, key, config);
  }
  const Json ours = json.value("penstock", Json::object());
  if (json.contains(kWorldKey) && ours.contains(kOrderKey)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "replay: the run has several ranks and penstock.gradient_order \"rank\": one "
                     "process adds gradients in another order, which changes the last bits");
  }
  const Json home = {{"device", "nvme"}, {"nvme_path", folder}};
  config["zero_optimization"] = {
      {"stage", 3}, {"offload_param", home}, {"offload_optimizer", home}};
  Json& penstock = config["penstock"] = ours;
  penstock["durable"] = false;
  penstock["commit_every_seconds"] = 0;
  penstock["tier_split"] = true;
  return config.dump(2) + "\n";
}

}  // namespace penstock::train
