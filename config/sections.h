// Reads the configuration, section by section (private to config and its tests).
//
// Reading has two passes. The Read functions take keys one by one and refuse wrong types, values
// out of range and features that are not implemented; after them, unknown keys are reported. The
// Check functions then compare values with each other. Each section has its own file, named above
// its functions here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "config/auto.h"
#include "config/config.h"
#include "config/json_section.h"

namespace penstock::config {

/// A tile holds a multiple of this many elements: whole blocks. Signed, as integers of JSON are.
inline constexpr int64_t kTileGranularity{kBlockElements};

/// The keys of the batch triangle.
inline constexpr char kTrainBatchSize[] = "train_batch_size";
inline constexpr char kMicroBatchSize[] = "train_micro_batch_size_per_gpu";
inline constexpr char kAccumulationSteps[] = "gradient_accumulation_steps";

/// The Config under construction, and values that only the checks need.
struct ConfigDraft {
  uint64_t world_size = 1;
  Config config;

  std::optional<int64_t> train_batch_size;
  std::optional<int64_t> micro_batch_size;
  std::optional<int64_t> gradient_accumulation_steps;
  /// The keys that are "auto" and derived from the others.
  std::vector<std::string> derived_batch_sizes;

  int64_t sub_group_size = 1000000000;
  /// Empty if the key is missing, or its home is not on nvme.
  std::vector<std::string> parameter_nvme_paths;
  std::vector<std::string> optimizer_nvme_paths;

  bool total_num_steps_given = false;
  bool cycle_min_lr_given = false;
  bool cycle_max_lr_given = false;
};

/// The values of "auto".
struct AutoOutcome {
  std::vector<AutomaticKey> keys;
  std::optional<double> warmup_ratio;  ///< value of --warmup-ratio, if that sets the warm-up
  bool ratio_for_auto = false;         ///< the key is "auto"; else it is missing
  bool precision_is_trainers = false;  ///< fp16.enabled or bf16.enabled is "auto" without a flag
};

// auto.cc
/// Sets keys of the document to the values of `sources` and the Trainer. Remaining "auto" keys take
/// their default, or are derived. Errors: kInvalidArgument for a flag that differs from the
/// document, or that has no effect.
Result<AutoOutcome> ResolveAuto(JsonDocument& document, const AutoSources& sources);

// misplaced.cc
/// Moves misplaced sections. Errors: kInvalidArgument if one differs from the correctly placed one.
Status MoveMisplaced(JsonDocument& document, std::vector<std::string>& notices);

// batch.cc
void ReadBatch(JsonSection& top, ConfigDraft& draft);
void CheckBatch(JsonReader& reader, ConfigDraft& draft);
std::optional<RampupConfig> ReadRampup(JsonSection& penstock);
/// Checks the ramp-up of a batch that CheckBatch has accepted.
void CheckRampup(JsonReader& reader, const ConfigDraft& draft);

// precision.cc
void ReadPrecision(JsonSection& top, ConfigDraft& draft);

// optimizer.cc
void ReadOptimizer(JsonReader& reader, JsonSection& top, ConfigDraft& draft);

// scheduler.cc
/// Returns the value of scheduler.type.
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
