#include "train/run/run_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/to_json.h"

namespace penstock::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kArithmetic = "arithmetic";

/// "/optimizer/params/lr" as "optimizer.params.lr".
std::string KeyName(std::string pointer) {
  pointer.erase(0, 1);
  std::ranges::replace(pointer, '/', '.');
  return pointer;
}

}  // namespace

std::string ToJson(const RunIdentity& identity) {
  const Json config = Json::parse(config::ConfigToJson(identity.config));
  Json json = {{"model", Json::parse(identity.model)},
               {"data", {{"fingerprint", fmt::format("{:016x}", identity.data_fingerprint)}}},
               {"data_order", identity.data_order},
               {"seed", identity.seed},
               {"sequence_length", identity.sequence_length}};
  for (const char* key :
       {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
        "gradient_clipping", "bf16", "optimizer", "scheduler"}) {
    json[key] = config.at(key);
  }
  // A key that was added later is only there if its value is not the former behaviour: so the
  // commits of earlier versions can be resumed.
  if (json["bf16"]["bf16_optimizer_states"] == false) json["bf16"].erase("bf16_optimizer_states");
  json["penstock"] = {{"compute_threads", identity.config.compute_threads}};
  json[kArithmetic] = identity.arithmetic;
  return json.dump();
}

bool IsIdentity(const nlohmann::json& value) {
  return value.is_object() && value.contains(kArithmetic) && value[kArithmetic].is_string();
}

std::vector<std::string> Differences(const std::string& committed, const std::string& now) {
  const Json before = Json::parse(committed).flatten();
  const Json after = Json::parse(now).flatten();
  std::vector<std::string> differences;
  for (const auto& [pointer, value] : after.items()) {
    const std::string key = KeyName(pointer);
    if (key == kArithmetic) continue;
    if (!before.contains(pointer)) {
      differences.push_back(fmt::format("{} is {}, was not there", key, value.dump()));
    } else if (before[pointer] != value) {
      differences.push_back(
          fmt::format("{} is {}, was {}", key, value.dump(), before[pointer].dump()));
    }
  }
  for (const auto& [pointer, value] : before.items()) {
    if (after.contains(pointer)) continue;
    differences.push_back(fmt::format("{} is not there, was {}", KeyName(pointer), value.dump()));
  }
  return differences;
}

std::vector<std::string> DifferencesFromRun(const std::string& committed,
                                            const RunDescription& now) {
  const Json described = {{"model", Json::parse(now.model)},
                          {"data_order", now.data_order},
                          {"seed", now.seed},
                          {"sequence_length", now.sequence_length}};
  const Json all = Json::parse(committed);
  Json before = Json::object();
  for (const auto& [key, value] : described.items()) {
    if (all.contains(key)) before[key] = all[key];
  }
  return Differences(before.dump(), described.dump());
}

std::string ArithmeticOf(const std::string& identity) {
  return Json::parse(identity).at(kArithmetic).get<std::string>();
}

}  // namespace penstock::train
