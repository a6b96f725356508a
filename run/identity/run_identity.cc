#include "run/identity/run_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/to_json.h"

namespace penstock::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kArithmetic = "arithmetic";
constexpr const char* kAccumulation = "gradient_accumulation_steps";
/// How the gradients of several micro-batches are added up: since 2, what each of them adds is
/// computed first. Older commits do not have the key.
constexpr const char* kGradientSums = "gradient_sums";
constexpr int kComputedFirst = 2;
/// Only there if gradients are rounded on their way.
constexpr const char* kCommunication = "communication_data_type";
/// Only there if ranks add up their own micro-batches first.
constexpr const char* kGradientOrder = "gradient_order";
/// Only there if the batch grows.
constexpr const char* kRampup = "rampup_batch_size";
/// Only there if there are several.
constexpr const char* kRanks = "world_size";

/// "/optimizer/params/lr" as "optimizer.params.lr".
std::string KeyName(std::string pointer) {
  pointer.erase(0, 1);
  std::ranges::replace(pointer, '/', '.');
  return pointer;
}

/// What a person cannot read off the key.
std::string Explained(const std::string& key) {
  if (key != kGradientSums) return "";
  return " (the version that made the commit adds up micro-batches in another way)";
}

/// Removes from two flat identities what differs only because another key does, which is named, and
/// what changes no number: how many ranks share the micro-batches of a step.
void EraseConsequences(Json* before, Json* after) {
  const std::string accumulation = std::string("/") + kAccumulation;
  const std::string ranks = std::string("/") + kRanks;
  if (before->contains(ranks) || after->contains(ranks)) {
    for (Json* const identity : {before, after}) {
      identity->erase(ranks);
      identity->erase(accumulation);
    }
    return;
  }
  if (!before->contains(accumulation) || !after->contains(accumulation)) return;
  if ((*before)[accumulation] == (*after)[accumulation]) return;
  for (Json* const identity : {before, after}) identity->erase(std::string("/") + kGradientSums);
}

}  // namespace

std::string ToJson(const RunIdentity& identity) {
  const Json config = Json::parse(config::ConfigToJson(identity.config));
  Json json = {{"model", Json::parse(identity.model)},
               {"data", {{"fingerprint", fmt::format("{:016x}", identity.data_fingerprint)}}},
               {"data_order", identity.data_order},
               {"seed", identity.seed},
               {"sequence_length", identity.sequence_length}};
  for (const char* key : {"train_batch_size", "train_micro_batch_size_per_gpu", kAccumulation,
                          "gradient_clipping", "bf16", "optimizer", "scheduler"}) {
    json[key] = config.at(key);
  }
  // A key that was added later is only there if its value is not the former behaviour: so the
  // commits of earlier versions can be resumed.
  if (json["bf16"]["bf16_optimizer_states"] == false) json["bf16"].erase("bf16_optimizer_states");
  if (identity.config.loss_scaling) json["fp16"] = config.at("fp16");
  if (identity.config.communication != DType::kFloat32) {
    json[kCommunication] = config.at(kCommunication);
  }
  if (identity.config.gradient_accumulation_steps > 1 || identity.ranks > 1) {
    json[kGradientSums] = kComputedFirst;
  }
  if (identity.ranks > 1) json[kRanks] = identity.ranks;
  json["penstock"] = {{"compute_threads", identity.config.compute_threads}};
  if (identity.config.gradient_order == config::GradientOrder::kRank) {
    json["penstock"][kGradientOrder] = config.at("penstock").at(kGradientOrder);
  }
  if (identity.config.rampup) json["penstock"][kRampup] = config.at("penstock").at(kRampup);
  json[kArithmetic] = identity.arithmetic;
  return json.dump();
}

bool IsIdentity(const nlohmann::json& value) {
  return value.is_object() && value.contains(kArithmetic) && value[kArithmetic].is_string();
}

bool HasRampup(const nlohmann::json& identity) {
  const auto ours = identity.find("penstock");
  return ours != identity.end() && ours->contains(kRampup);
}

std::string ToText(const KeyDifference& difference) {
  const auto& [key, before, after] = difference;
  if (before.empty()) {
    return fmt::format("{} is {}, was not there{}", key, after, Explained(key));
  }
  if (after.empty()) return fmt::format("{} is not there, was {}", key, before);
  return fmt::format("{} is {}, was {}", key, after, before);
}

std::vector<KeyDifference> KeyDifferences(const std::string& committed, const std::string& now) {
  Json before = Json::parse(committed).flatten();
  Json after = Json::parse(now).flatten();
  EraseConsequences(&before, &after);
  std::vector<KeyDifference> differences;
  for (const auto& [pointer, value] : after.items()) {
    const std::string key = KeyName(pointer);
    if (key == kArithmetic) continue;
    const std::string was = before.contains(pointer) ? before[pointer].dump() : "";
    if (was.empty() || before[pointer] != value) differences.push_back({key, was, value.dump()});
  }
  for (const auto& [pointer, value] : before.items()) {
    if (!after.contains(pointer)) differences.push_back({KeyName(pointer), value.dump(), ""});
  }
  return differences;
}

std::vector<std::string> Differences(const std::string& committed, const std::string& now) {
  std::vector<std::string> texts;
  for (const KeyDifference& difference : KeyDifferences(committed, now)) {
    texts.push_back(ToText(difference));
  }
  return texts;
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

uint64_t BatchOf(const std::string& identity) {
  return Json::parse(identity).at("train_batch_size").get<uint64_t>();
}

std::string ArithmeticOf(const std::string& identity) {
  return Json::parse(identity).at(kArithmetic).get<std::string>();
}

}  // namespace penstock::train
