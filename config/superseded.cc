#include "config/superseded.h"

#include <fmt/format.h>

#include <map>

namespace penstock::config {

std::string_view TextOf(Instead instead) {
  switch (instead) {
    case Instead::kBudgets:
      return "every byte is planned within penstock.device_memory and penstock.host_memory";
    case Instead::kOrder:
      return "the order of a step is known in advance: reads run ahead, and updates run under the "
             "next forward (penstock.overlap)";
    case Instead::kExchange:
      return "what ranks send each other follows from zero_optimization.stage and "
             "penstock.gradient_order";
    case Instead::kMetrics:
      return "metrics.jsonl has times, rates, bytes and peaks of every step; --trace writes what "
             "ran when";
    case Instead::kSummary:
      return "summary.json has the configuration as it was understood";
    case Instead::kNotices:
      return "notices are always printed, and steps_per_print says how often progress is";
    case Instead::kExport:
      return "16-bit weights are written by `penstock export RUN --to DIR --dtype bf16`";
    case Instead::kCommits:
      return "the state file is the checkpoint: commits copy nothing and have checksums, which "
             "`penstock inspect RUN` verifies";
    case Instead::kPlacement:
      return "every commit resumes with other homes, tiles, paths and numbers of ranks";
    case Instead::kStatePaths:
      return "each rank's state lies in its nvme_path, which may be a drive of its own node, or in "
             "the folder of the run if no home is nvme";
    case Instead::kUnusedPath:
      return "the device beside it is not \"nvme\"";
    case Instead::kRecomputation:
      return "the input of each layer is a checkpoint, at home in penstock.activation_home, and "
             "layers are computed again in backward";
    case Instead::kNoTensorParallel:
      return "it divides activations over tensor-parallel ranks, and there are none";
    case Instead::kUpdate:
      return "updates are penstock's own, fused, on penstock.optimizer_threads threads";
    case Instead::kAnyOptimizer:
      return "every optimizer that is accepted works with every stage and placement";
    case Instead::kMoments:
      return "moments live where zero_optimization.offload_optimizer says";
    case Instead::kModules:
      return "modules may be used in any order, or not at all";
    case Instead::kChecks:
      return "checks are always on";
    case Instead::kPrecision:
      return "a step computes in the model's type throughout, and a gradient is rounded to it once";
    case Instead::kAccumulation:
      return "gradients are accumulated in fp32 whatever it says, and rounded once to the model's "
             "type";
    case Instead::kModelConfig:
      return "the model's config.json says it";
    case Instead::kEpoch:
      return "every batch is whole, and a run without --steps leaves out the rows that fill none";
  }
  return "";
}

std::vector<std::string> SupersededLines(const std::vector<SupersededKey>& keys) {
  std::map<Instead, std::string> groups;
  for (const SupersededKey& key : keys) {
    std::string& names = groups[key.instead];
    names += names.empty() ? key.path : ", " + key.path;
  }
  std::vector<std::string> lines;
  for (const auto& [instead, names] : groups) {
    lines.push_back(fmt::format("without effect: {}: {}", names, TextOf(instead)));
  }
  return lines;
}

}  // namespace penstock::config
