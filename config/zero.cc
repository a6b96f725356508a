// zero_optimization: the stage, where parameters and optimizer states live, the tile size.
#include <algorithm>
#include <filesystem>
#include <set>

#include "config/sections.h"

namespace penstock::config {
namespace {

constexpr char kParameterDevice[] = "zero_optimization.offload_param.device";
constexpr char kOptimizerDevice[] = "zero_optimization.offload_optimizer.device";

/// DeepSpeed takes most stage 3 keys with and without their prefix.
void ReadStage3(JsonSection& zero) {
  zero.Superseded(Instead::kOrder, {{"stage3_prefetch_bucket_size", kInteger},
                                    {"prefetch_bucket_size", kInteger},
                                    {"stage3_max_reuse_distance", kInteger},
                                    {"max_reuse_distance", kInteger},
                                    {"stage3_module_granularity_threshold", kInteger},
                                    {"module_granularity_threshold", kInteger}});
  zero.Superseded(Instead::kBudgets, {{"stage3_param_persistence_threshold", kInteger},
                                      {"param_persistence_threshold", kInteger},
                                      {"stage3_model_persistence_threshold", kInteger},
                                      {"model_persistence_threshold", kInteger},
                                      {"stage3_max_live_parameters", kInteger},
                                      {"max_live_parameters", kInteger},
                                      {"stage3_partition_stream_chunk_size", kInteger},
                                      {"partition_stream_chunk_size", kInteger}});
  zero.Superseded(Instead::kExport, {{"stage3_gather_16bit_weights_on_model_save", kBool},
                                     {"gather_16bit_weights_on_model_save", kBool},
                                     {"stage3_gather_fp16_weights_on_model_save", kBool}});
  zero.Superseded(Instead::kExchange, {{"stage3_use_all_reduce_for_fetch_params", kBool},
                                       {"use_all_reduce_for_fetch_params", kBool},
                                       {"stage3_allgather_sequential", kBool},
                                       {"allgather_sequential", kBool}});
}

void ReadTuning(JsonSection& zero) {
  zero.Superseded(Instead::kBudgets, {{"contiguous_gradients", kBool},
                                      {"reduce_bucket_size", kInteger},
                                      {"allgather_bucket_size", kInteger},
                                      {"memory_efficient_linear", kBool}});
  zero.Superseded(Instead::kExchange, {{"reduce_scatter", kBool},
                                       {"use_multi_rank_bucket_allreduce", kBool},
                                       {"allgather_partitions", kBool},
                                       {"round_robin_gradients", kBool}});
  zero.Superseded(Instead::kOrder, {{"overlap_comm", kBool | kNull}});
  zero.Superseded(Instead::kModules, {{"ignore_unused_parameters", kBool},
                                      {"override_module_apply", kBool},
                                      {"log_trace_cache_warnings", kBool}});
  zero.Superseded(Instead::kCommits, {{"pipeline_loading_checkpoint", kBool}});
  zero.Superseded(Instead::kChecks, {{"enable_sanity_checks", kBool}});
  zero.Superseded(Instead::kMoments, {{"save_muon_momentum_buffer_in_memory", kBool}});
  zero.Object("leaf_module", [](JsonSection& leaf) {
    leaf.Superseded(Instead::kModules,
                    {{"classes", kList}, {"names", kList}, {"name_suffixes", kList}});
  });
}

void ReadUnimplemented(JsonSection& zero) {
  zero.Off({{"load_from_fp32_weights", kBool, "[true]"},
            {"elastic_checkpoint", kBool, "[false]"},
            {"legacy_stage1", kBool, "[false]"},
            {"zenflow", kObject | kNull, "[null]", "remove it"},
            {"zero_hpz_partition_size", kInteger, "[0, 1]"},
            {"zero_quantized_weights", kBool, "[false]"},
            {"zero_quantized_nontrainable_weights", kBool, "[false]"},
            {"zero_quantized_gradients", kBool, "[false]"},
            {"zeropp_loco_param", kObject | kNull, "[null]", "remove it"},
            {"mics_shard_size", kInteger, "[-1]"},
            {"mics_hierarchical_params_gather", kBool, "[false]"},
            {"cpu_offload", kBool | kNull, "[false, null]",
             "write offload_optimizer: {\"device\": \"cpu\"} instead"},
            {"cpu_offload_param", kBool | kNull, "[false, null]",
             "write offload_param: {\"device\": \"cpu\"} instead"}});
  zero.Superseded(Instead::kBudgets, {{"cpu_offload_use_pin_memory", kBool | kNull}});
}

Tier ReadDevice(JsonSection& offload) {
  return offload.Choice<Tier>(
      "device", {{"none", Tier::kDevice}, {"cpu", Tier::kHost}, {"nvme", Tier::kNvme}},
      Tier::kDevice);
}

/// "/a//b/." and "/a/b" are one folder.
std::string Normal(const std::string& path) {
  const std::filesystem::path normal = std::filesystem::path(path).lexically_normal();
  return normal.has_filename() ? normal.string() : normal.parent_path().string();
}

/// The folders of a text or a list; empty after a failure.
std::vector<std::string> PathsOf(JsonSection& offload, const nlohmann::json& value) {
  const nlohmann::json list = value.is_array() ? value : nlohmann::json::array({value});
  if (list.empty() || list.size() > kMaxNvmePaths) {
    offload.Fail("nvme_path",
                 fmt::format("a list of {} paths; give 1 to {}", list.size(), kMaxNvmePaths));
    return {};
  }
  std::vector<std::string> paths;
  std::set<std::string> seen;
  for (const nlohmann::json& entry : list) {
    const std::string path = entry.is_string() ? entry.get<std::string>() : "";
    if (path.empty() || path.find('\0') != std::string::npos) {
      offload.Fail("nvme_path", fmt::format("{} is not a path", Show(entry)));
      return {};
    }
    if (!seen.insert(Normal(path)).second) {
      offload.Fail("nvme_path",
                   fmt::format("{} is given twice; name each folder once", Show(entry)));
      return {};
    }
    paths.push_back(path);
  }
  return paths;
}

/// Only a home on nvme uses the paths; another one's are type-checked and listed.
std::vector<std::string> ReadNvmePaths(JsonSection& offload, Tier home) {
  if (home != Tier::kNvme) {
    offload.Superseded(Instead::kUnusedPath, {{"nvme_path", kText | kList | kNull}});
    return {};
  }
  const nlohmann::json* value = offload.Find("nvme_path");
  if (value == nullptr || value->is_null() || offload.TakeAuto("nvme_path", *value)) return {};
  return PathsOf(offload, *value);
}

void ReadOffloadParam(JsonSection& offload, ConfigDraft& draft) {
  draft.config.parameter_home = ReadDevice(offload);
  draft.parameter_nvme_paths = ReadNvmePaths(offload, draft.config.parameter_home);
  offload.Superseded(Instead::kBudgets, {{"buffer_count", kInteger},
                                         {"buffer_size", kInteger},
                                         {"max_in_cpu", kInteger},
                                         {"pin_memory", kBool}});
}

void ReadOffloadOptimizer(JsonSection& offload, ConfigDraft& draft) {
  draft.config.optimizer_home = ReadDevice(offload);
  draft.optimizer_nvme_paths = ReadNvmePaths(offload, draft.config.optimizer_home);
  offload.Superseded(Instead::kBudgets, {{"buffer_count", kInteger}, {"pin_memory", kBool}});
  offload.Superseded(Instead::kOrder, {{"pipeline_read", kBool}, {"pipeline_write", kBool}});
  offload.Superseded(Instead::kUpdate, {{"fast_init", kBool}, {"cpuadam_cores_perc", kNumber}});
  offload.Off({{"ratio", kNumber, "[1.0]"}, {"super_offload", kBool, "[false]"}});
}

void CheckNvmePaths(JsonReader& reader, ConfigDraft& draft) {
  const auto& parameter_paths = draft.parameter_nvme_paths;
  const auto& optimizer_paths = draft.optimizer_nvme_paths;
  if (draft.config.parameter_home == Tier::kNvme && parameter_paths.empty()) {
    reader.Fail("zero_optimization.offload_param.nvme_path",
                "missing; device nvme needs a folder on the drive");
  }
  if (draft.config.optimizer_home == Tier::kNvme && optimizer_paths.empty()) {
    reader.Fail("zero_optimization.offload_optimizer.nvme_path",
                "missing; device nvme needs a folder on the drive");
  }
  if (!parameter_paths.empty() && !optimizer_paths.empty() && parameter_paths != optimizer_paths) {
    reader.Fail("zero_optimization.offload_param.nvme_path",
                fmt::format("{} differs from offload_optimizer.nvme_path {}; the same drives hold "
                            "both, make them equal",
                            Show(PathsJson(parameter_paths)), Show(PathsJson(optimizer_paths))));
  }
  draft.config.nvme_paths = parameter_paths.empty() ? optimizer_paths : parameter_paths;
}

}  // namespace

nlohmann::json PathsJson(const std::vector<std::string>& paths) {
  return paths.size() == 1 ? nlohmann::json(paths.front()) : nlohmann::json(paths);
}

void ReadZero(JsonSection& top, ConfigDraft& draft) {
  const nlohmann::json* value = top.Find("zero_optimization");
  if (value != nullptr && value->is_boolean()) {  // DeepSpeed's old form
    draft.config.zero_stage = value->get<bool>() ? 1 : 0;
    return;
  }
  top.Object("zero_optimization", [&](JsonSection& zero) {
    draft.config.zero_stage = static_cast<int>(zero.Integer("stage", 0, {0, 3}));
    draft.sub_group_size = zero.Integer("sub_group_size", draft.sub_group_size);
    zero.Object("offload_param", [&](JsonSection& offload) { ReadOffloadParam(offload, draft); });
    zero.Object("offload_optimizer",
                [&](JsonSection& offload) { ReadOffloadOptimizer(offload, draft); });
    ReadTuning(zero);
    ReadStage3(zero);
    ReadUnimplemented(zero);
  });
}

void CheckHomes(JsonReader& reader, ConfigDraft& draft) {
  Config& config = draft.config;
  if (config.parameter_home != Tier::kDevice && config.zero_stage != 3) {
    reader.Fail(kParameterDevice,
                fmt::format("needs zero_optimization.stage 3, not {}", config.zero_stage));
  }
  if (config.parameter_home != Tier::kDevice && config.optimizer_home == Tier::kDevice) {
    reader.Fail(kParameterDevice,
                "parameters below the device need the optimizer states below it as well; set "
                "offload_optimizer.device to \"cpu\" or \"nvme\"");
  }
  if (config.optimizer_home != Tier::kDevice && config.zero_stage == 0) {
    reader.Fail(kOptimizerDevice, "needs zero_optimization.stage 1 or higher, not 0");
  }
  if (config.optimizer_home == Tier::kNvme && config.zero_stage != 3) {
    reader.Fail(kOptimizerDevice,
                fmt::format("\"nvme\" needs zero_optimization.stage 3, not {}", config.zero_stage));
  }
  CheckNvmePaths(reader, draft);
  const int64_t bound =
      std::max(kTileGranularity, draft.sub_group_size / kTileGranularity * kTileGranularity);
  config.tile_elements = std::min(config.tile_elements, static_cast<uint64_t>(bound));
}

}  // namespace penstock::config
