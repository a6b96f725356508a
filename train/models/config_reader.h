// Reads the keys of a model's config.json strictly, and remembers which ones were read, so that a
// key without effect is reported and none is silently ignored.
//
// Threads: one.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace penstock::train {

/// A key that is a size, and how large it may be.
struct SizeKey {
  const char* name;
  const char* alias = nullptr;  ///< another name that Hugging Face accepts for it; null: none
  uint64_t most = 0;
};

/// A key that changes what is computed, and the one value that is implemented.
struct FixedKey {
  const char* name;
  bool value;
  const char* why;
};

class ConfigReader {
 public:
  /// `name` is the config's path in messages.
  ConfigReader(std::string name, nlohmann::json object)
      : name_(std::move(name)), object_(std::move(object)) {}

  /// Makes the error of a key: "model config NAME: KEY is …".
  template <typename... Args>
  Error Wrong(const char* key, fmt::format_string<Args...> format, Args&&... args) const {
    return MakeError(ErrorCode::kInvalidArgument, "model config {}: {} {}", name_, key,
                     fmt::format(format, std::forward<Args>(args)...));
  }

  /// Returns the value of a key; null if it is absent or null.
  const nlohmann::json* Find(const char* key);

  // The errors of all functions that read are made by Wrong().

  /// Returns a whole number from 1 to `most`; none if the key is absent.
  Result<std::optional<uint64_t>> ReadSize(const char* key, uint64_t most);
  /// Sets `value`. If the key is absent, leaves it and adds a notice.
  Status ReadSize(const SizeKey& key, uint64_t* value);
  /// Sets `value` to a number up to 1 that is at least `least`, or above 0 if `least` is positive.
  /// If the key is absent, leaves it.
  Status ReadReal(const char* key, double least, double* value);
  Status CheckFixed(std::span<const FixedKey> keys);
  /// Refuses any text but `value`, which an absent key stands for.
  Status CheckText(const char* key, const char* value);
  /// Reads rates that are not applied; a rate above 0 becomes a notice.
  Status NoteDropout(std::span<const char* const> keys);
  /// Reads gradient_checkpointing, which is not followed; false becomes a notice.
  void NoteRecomputation();

  /// Returns notices for the user: sizes that are absent and were taken from `family` (a name for
  /// people); and keys without effect, which were not read and are none of `descriptions`, which
  /// describe a model or its use elsewhere.
  std::vector<std::string> TakeNotices(const char* family,
                                       std::span<const char* const> descriptions);

 private:
  std::string name_;
  nlohmann::json object_;
  std::vector<std::string> seen_;
  std::vector<std::string> defaults_;
  std::vector<std::string> notices_;
};

}  // namespace penstock::train
