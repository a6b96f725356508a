// Shared by the tests of the configuration: reading one text, and the message of a refusal.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/config.h"

namespace penstock::config {

/// A configuration that says nothing but a batch size, and `members` ("\"a\": 1").
inline std::string WithBatch(const std::string& members) {
  return fmt::format("{{\"train_micro_batch_size_per_gpu\": 1{}{}}}", members.empty() ? "" : ",\n",
                     members);
}

/// The paths of superseded or automatic keys.
template <typename Key>
std::vector<std::string> PathsOf(const std::vector<Key>& keys) {
  std::vector<std::string> paths;
  for (const Key& key : keys) paths.push_back(key.path);
  return paths;
}

inline Result<Config> Parse(const std::string& text, uint64_t world_size = 1) {
  return ParseConfig({{"ds.json", text}}, world_size);
}

/// The Config of a text that must be good.
inline Config Good(const std::string& text, uint64_t world_size = 1) {
  Result<Config> config = Parse(text, world_size);
  EXPECT_TRUE(config.ok()) << text << "\n" << (config.ok() ? "" : config.error().message);
  return config.ok() ? *config : Config{};
}

inline const kernels::AdamHyperparameters& AdamOf(const Config& config) {
  return std::get<kernels::AdamHyperparameters>(config.optimizer.hyper);
}

/// The message of a text that must be refused: one line, of the kind that is the user's fault.
inline std::string Refused(const std::string& text, uint64_t world_size = 1) {
  Result<Config> config = Parse(text, world_size);
  EXPECT_FALSE(config.ok()) << "accepted: " << text;
  if (config.ok()) return {};
  EXPECT_EQ(config.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(config.error().message.find('\n'), std::string::npos) << config.error().message;
  return config.error().message;
}

}  // namespace penstock::config
