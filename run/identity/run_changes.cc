#include "run/identity/run_changes.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/strict_json.h"
#include "run/identity/run_identity.h"

namespace penstock::train {
namespace {

using Json = nlohmann::ordered_json;

/// What can change, with everything below it.
constexpr auto kChangeable = std::to_array<std::string_view>(
    {"optimizer.params", "scheduler", "gradient_clipping", "fp16.loss_scale",
     "fp16.loss_scale_window", "fp16.min_loss_scale", "train_batch_size",
     "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"});
/// What cannot, though it lies below: the moments begin with it.
constexpr std::string_view kBeginning = "optimizer.params.initial_accumulator_value";
/// Each follows from the others, so one that is changed may change these as well.
constexpr auto kBatch = std::to_array<std::string_view>(
    {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"});

Error RefusedChange(const std::string& key, const std::string& why) {
  return MakeError(ErrorCode::kInvalidArgument, "--change {}: {}", key, why);
}

std::string WhyNot() {
  return fmt::format(
      "this key cannot be changed in a run, or does not exist; a run can change {} and keys "
      "below, like optimizer.params.lr; everything else needs a new run",
      fmt::join(kChangeable, ", "));
}

Status CheckValue(const RequestedChange& change) {
  nlohmann::json ignored;
  if (!ParseStrictly(change.value, {}, &ignored)) return {};
  return RefusedChange(
      change.key, fmt::format("{} is not JSON; write a number, true, null, a list or an object as "
                              "it is, and a text in quotes: '{}=\"linear\"'",
                              nlohmann::json(change.value)
                                  .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                              change.key));
}

Result<RequestedChange> ParseChange(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return RefusedChange(text, "give KEY=VALUE, like optimizer.params.lr=1e-4");
  }
  RequestedChange change{.key = text.substr(0, equals), .value = text.substr(equals + 1)};
  if (!CanChange(change.key)) return RefusedChange(change.key, WhyNot());
  PENSTOCK_TRY(CheckValue(change));
  return change;
}

Json::json_pointer PointerOf(std::string key) {
  std::ranges::replace(key, '.', '/');
  return Json::json_pointer("/" + key);
}

std::string ValueAt(const Json& identity, const std::string& key) {
  const auto pointer = PointerOf(key);
  return identity.contains(pointer) ? identity.at(pointer).dump() : "null";
}

/// "optimizer.params.betas" of "optimizer.params.betas.1".
std::string WithoutIndex(const std::string& key) {
  const size_t dot = key.rfind('.');
  const bool index = dot != std::string::npos &&
                     std::all_of(key.begin() + static_cast<ptrdiff_t>(dot) + 1, key.end(),
                                 [](char c) { return c >= '0' && c <= '9'; });
  return index ? key.substr(0, dot) : key;
}

/// The flags that make changes of all differences; empty if not all can be.
std::string Suggestion(const std::vector<KeyDifference>& differences, const Json& now) {
  std::set<std::string> flags;
  for (const KeyDifference& difference : differences) {
    if (!CanChange(difference.key)) return "";
    const std::string key = WithoutIndex(difference.key);
    const bool there = now.contains(PointerOf(key)) && !now.at(PointerOf(key)).is_object();
    flags.insert(there ? fmt::format("--change '{}={}'", key, ValueAt(now, key))
                       : "--change KEY=VALUE");
  }
  return fmt::format("; or resume with other numbers: {}", fmt::join(flags, " "));
}

/// If a run changed a key, files with its first value are a likely mistake.
std::string ChangedBefore(const std::vector<KeyDifference>& differences,
                          const std::vector<RunChange>& earlier) {
  std::string text;
  for (const RunChange& change : earlier) {
    const auto concerns = [&](const KeyDifference& other) { return Covers(change.key, other.key); };
    if (!std::ranges::any_of(differences, concerns)) continue;
    text += fmt::format("; the run changed {} after step {}, so --config needs the new value",
                        ToText(change), change.step);
  }
  return text;
}

Error OtherNumbers(const std::vector<KeyDifference>& differences, const Json& now, uint64_t step,
                   const std::vector<RunChange>& earlier) {
  std::vector<std::string> texts;
  for (const KeyDifference& difference : differences) texts.push_back(ToText(difference));
  return MakeError(ErrorCode::kInvalidArgument,
                   "--resume: step {} was committed by a training with other numbers: {}; give "
                   "the values that the run was started with, or start a new run{}{}",
                   step, fmt::join(texts, "; "), ChangedBefore(differences, earlier),
                   Suggestion(differences, now));
}

/// The keys of the batch that differ and were not asked for: they follow from one that was.
void AddDerived(const std::vector<KeyDifference>& differences,
                std::vector<RequestedChange>* changes) {
  const auto asks = [changes](std::string_view key) {
    return std::ranges::find(*changes, key, &RequestedChange::key) != changes->end();
  };
  if (std::ranges::none_of(kBatch, asks)) return;
  for (const KeyDifference& difference : differences) {
    if (IsOfBatch(difference.key) && !asks(difference.key)) {
      changes->push_back({.key = difference.key, .value = difference.after});
    }
  }
}

Status CheckRampup(const Json& before, const Json& after, const std::string& key) {
  if (!IsOfBatch(key) || (!HasRampup(before) && !HasRampup(after))) return {};
  return RefusedChange(key,
                       "penstock.rampup_batch_size sets how the batch of this run grows from its "
                       "first sample on; export the commit (penstock export) and begin a new run "
                       "with that model");
}

}  // namespace

bool IsOfBatch(std::string_view key) { return std::ranges::find(kBatch, key) != kBatch.end(); }

bool Covers(std::string_view whole, std::string_view key) {
  return key.starts_with(whole) && (key.size() == whole.size() || key[whole.size()] == '.');
}

bool CanChange(std::string_view key) {
  const bool is_path = std::ranges::all_of(key, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
  });
  return is_path && !Covers(kBeginning, key) &&
         std::ranges::any_of(kChangeable,
                             [&](std::string_view whole) { return Covers(whole, key); });
}

Result<std::vector<RequestedChange>> ParseChanges(const std::vector<std::string>& texts) {
  std::vector<RequestedChange> changes;
  for (const std::string& text : texts) {
    PENSTOCK_ASSIGN(RequestedChange change, ParseChange(text));
    for (const RequestedChange& other : changes) {
      if (!Covers(other.key, change.key) && !Covers(change.key, other.key)) continue;
      return RefusedChange(change.key,
                           fmt::format("--change {} sets it as well; keep one", other.key));
    }
    changes.push_back(std::move(change));
  }
  return changes;
}

std::vector<std::string> ConfigTexts(const std::vector<RequestedChange>& changes) {
  std::vector<std::string> texts;
  for (const RequestedChange& change : changes) {
    const auto add = [&](Json value) {
      Json config = Json::object();
      config[PointerOf(change.key)] = std::move(value);
      texts.push_back(config.dump());
    };
    Json value = Json::parse(change.value);
    if (value.is_object()) add(nullptr);
    add(std::move(value));
  }
  return texts;
}

Result<std::vector<RunChange>> AcceptChanges(const std::string& committed, const std::string& now,
                                             std::vector<RequestedChange> changes, uint64_t step,
                                             const std::vector<RunChange>& earlier) {
  std::vector<KeyDifference> others = KeyDifferences(committed, now);
  const bool batch = std::ranges::any_of(others, IsOfBatch, &KeyDifference::key);
  AddDerived(others, &changes);
  const Json before = Json::parse(committed);
  const Json after = Json::parse(now);
  std::vector<RunChange> accepted;
  for (const RequestedChange& change : changes) {
    const size_t erased = std::erase_if(others, [&](const KeyDifference& difference) {
      return Covers(change.key, difference.key) && CanChange(difference.key);
    });
    PENSTOCK_TRY(CheckRampup(before, after, change.key));
    // How many micro-batches each of several ranks has is no difference by itself.
    if (erased == 0 && !(batch && IsOfBatch(change.key))) {
      return RefusedChange(
          change.key, fmt::format("step {} was committed with that value already ({}), or the key "
                                  "changes no number here; leave it out, and set it in --config",
                                  step, ValueAt(before, change.key)));
    }
    accepted.push_back({.step = step,
                        .key = change.key,
                        .before = ValueAt(before, change.key),
                        .after = ValueAt(after, change.key)});
  }
  if (!others.empty()) return OtherNumbers(others, after, step, earlier);
  return accepted;
}

std::vector<RunChange> CommittedChanges(std::vector<RunChange> changes, uint64_t step) {
  std::erase_if(changes, [step](const RunChange& change) { return change.step >= step; });
  return changes;
}

std::string ToText(const RunChange& change) {
  return fmt::format("{}: {} -> {}", change.key, change.before, change.after);
}

nlohmann::ordered_json ToJson(const RunChange& change) {
  return {{"step", change.step},
          {"key", change.key},
          {"old", Json::parse(change.before)},
          {"new", Json::parse(change.after)}};
}

}  // namespace penstock::train
