// How the configuration is read, section by section (private to config and its tests).
//
// Reading has two passes. The Read functions take keys one by one and refuse wrong types, values
// out of range and features that are not implemented; after them, unknown keys are reported. The
// Check functions then hold values against each other. Each section has a file of its own, which
// stands above its functions here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "config/config.h"
#include "config/json_section.h"

namespace penstock::config {

/// A tile holds a multiple of this many elements: whole blocks. Signed, as integers of JSON are.
inline constexpr int64_t kTileGranularity{kBlockElements};

/// The Config under construction, and what only the checks need.
struct ConfigDraft {
  uint64_t world_size = 1;
  Config config;

  std::optional<int64_t> train_batch_size;
  std::optional<int64_t> micro_batch_size;
  std::optional<int64_t> gradient_accumulation_steps;
  bool batch_size_is_auto = false;  ///< train_batch_size or the micro batch says "auto"

  int64_t sub_group_size = 1000000000;
  /// None where the key is not given, or its home not on nvme.
  std::vector<std::string> parameter_nvme_paths;
  std::vector<std::string> optimizer_nvme_paths;

  bool total_num_steps_given = false;
  bool cycle_min_lr_given = false;
  bool cycle_max_lr_given = false;
};

// batch.cc
void ReadBatch(JsonSection& top, ConfigDraft& draft);
void CheckBatch(JsonReader& reader, ConfigDraft& draft);
std::optional<RampupConfig> ReadRampup(JsonSection& penstock);
/// Of a batch that CheckBatch has accepted.
void CheckRampup(JsonReader& reader, const ConfigDraft& draft);

// precision.cc
void ReadPrecision(JsonSection& top, ConfigDraft& draft);

// optimizer.cc
void ReadOptimizer(JsonReader& reader, JsonSection& top, ConfigDraft& draft);

// scheduler.cc
/// As scheduler.type says it.
std::string_view SchedulerName(SchedulerType type);
void ReadScheduler(JsonSection& top, ConfigDraft& draft);
void CheckScheduler(JsonReader& reader, const ConfigDraft& draft);

// zero.cc
/// One path as a text, several as a list.
nlohmann::json PathsJson(const std::vector<std::string>& paths);
void ReadZero(JsonSection& top, ConfigDraft& draft);
void CheckHomes(JsonReader& reader, ConfigDraft& draft);

// penstock.cc
void ReadAio(JsonSection& top, ConfigDraft& draft);
void ReadPenstock(JsonSection& top, ConfigDraft& draft);

// monitors.cc
void ReadMonitors(JsonSection& top, Config& config);

// others.cc
/// A section of which "enabled" must be false; then its other keys mean nothing.
void ReadFeature(JsonSection& top, std::string_view name, JsonRules others,
                 std::string_view hint = {});
/// Everything of DeepSpeed's that is superseded or must be off.
void ReadOthers(JsonSection& top, ConfigDraft& draft);

// config.cc
/// All Read functions, in order.
void ReadConfig(JsonReader& reader, ConfigDraft& draft);

}  // namespace penstock::config
