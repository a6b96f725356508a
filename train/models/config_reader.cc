#include "train/models/config_reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/strict_json.h"

namespace penstock::train {

using nlohmann::json;

const json* ConfigReader::Find(const char* key) {
  seen_.emplace_back(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

Result<std::optional<uint64_t>> ConfigReader::ReadSize(const char* key, uint64_t most) {
  const json* const value = Find(key);
  if (value == nullptr) return std::optional<uint64_t>();
  if (!value->is_number_unsigned() || value->get<uint64_t>() == 0 ||
      value->get<uint64_t>() > most) {
    return Wrong(key, "is {}; it must be a whole number from 1 to {}", Excerpt(*value), most);
  }
  return std::optional(value->get<uint64_t>());
}

Status ConfigReader::ReadSize(const SizeKey& key, uint64_t* value) {
  PENSTOCK_ASSIGN(auto found, ReadSize(key.name, key.most));
  if (key.alias != nullptr) {
    PENSTOCK_ASSIGN(const auto alias, ReadSize(key.alias, key.most));
    if (found && alias && *found != *alias) {
      return Wrong(key.name, "is {} and {}, another name for it, is {}; keep one", *found,
                   key.alias, *alias);
    }
    if (!found) found = alias;
  }
  if (!found) defaults_.push_back(fmt::format("{} {}", key.name, *value));
  if (found) *value = *found;
  return {};
}

Status ConfigReader::ReadReal(const char* key, double least, double* value) {
  const json* const found = Find(key);
  if (found == nullptr) return {};
  const double number = found->is_number() ? found->get<double>() : -1;
  if (!(number >= least && number <= 1)) {
    return Wrong(key, "is {}; it must be a number {} 0 and at most 1", Excerpt(*found),
                 least == 0 ? "of at least" : "above");
  }
  *value = number;
  return {};
}

Status ConfigReader::CheckFixed(std::span<const FixedKey> keys) {
  for (const FixedKey& fixed : keys) {
    const json* const value = Find(fixed.name);
    if (value == nullptr || *value == fixed.value) continue;
    return Wrong(fixed.name, "is {} and must be {}: {}", Excerpt(*value), fixed.value, fixed.why);
  }
  return {};
}

Status ConfigReader::CheckText(const char* key, const char* value) {
  const json* const found = Find(key);
  if (found == nullptr || *found == value) return {};
  return Wrong(key, "is {}; only \"{}\" is implemented", Excerpt(*found), value);
}

Status ConfigReader::NoteDropout(std::span<const char* const> keys) {
  std::string applied;
  for (const char* key : keys) {
    double rate = 0;
    PENSTOCK_TRY(ReadReal(key, 0, &rate));
    if (rate == 0) continue;
    applied += fmt::format("{}{} {}", applied.empty() ? "" : ", ", key, rate);
  }
  if (!applied.empty()) {
    notices_.push_back(fmt::format("model config {}: dropout is not applied ({})", name_, applied));
  }
  return {};
}

void ConfigReader::NoteRecomputation() {
  const json* const value = Find("gradient_checkpointing");
  if (value == nullptr || *value != json(false)) return;
  notices_.push_back(
      fmt::format("model config {}: gradient_checkpointing false is not followed: each layer keeps "
                  "its input and is computed again in backward",
                  name_));
}

std::vector<std::string> ConfigReader::TakeNotices(const char* family,
                                                   std::span<const char* const> descriptions) {
  if (!defaults_.empty()) {
    notices_.push_back(fmt::format("model config {}: taken from {}, as the file does not say: {}",
                                   name_, family, fmt::join(defaults_, ", ")));
  }
  std::vector<std::string> unused;
  for (const auto& [key, value] : object_.items()) {
    if (std::ranges::find(seen_, key) != seen_.end()) continue;
    if (std::ranges::find(descriptions, key) == descriptions.end()) unused.push_back(key);
  }
  if (!unused.empty()) {
    notices_.push_back(
        fmt::format("model config {}: without effect here: {}", name_, fmt::join(unused, ", ")));
  }
  return std::move(notices_);
}

}  // namespace penstock::train
