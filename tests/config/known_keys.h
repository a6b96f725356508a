// All keys that a configuration can have, for tests that look at each.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "config/sections.h"

namespace penstock::config {

/// Reads `text`, as far as it can be read without checks, and hands over the reader.
inline void ReadUnchecked(const std::string& text,
                          const std::function<void(const JsonReader&)>& look) {
  JsonDocument document;
  EXPECT_TRUE(document.Merge("test", text).ok()) << text;
  JsonReader reader(document);
  ConfigDraft draft;
  ReadConfig(reader, draft);
  look(reader);
}

/// Configurations that together have all keys: those of a scheduler and of an optimizer depend on
/// its type.
inline constexpr const char* kAllTypes[] = {
    R"({"scheduler": {"type": "WarmupLR"}, "optimizer": {"type": "AdamW"}})",
    R"({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 9}},
        "optimizer": {"type": "Lion"}})",
    R"({"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 9}},
        "optimizer": {"type": "Adagrad"}})",
    R"({"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1}}})",
    R"({"scheduler": {"type": "LRRangeTest"}, "optimizer": {"type": "Lamb"}})",
    R"({"fp16": {"enabled": true}})"};

}  // namespace penstock::config
