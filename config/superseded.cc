#include "config/superseded.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/check.h"

namespace penstock::config {

namespace {

constexpr std::pair<Instead, std::string_view> kTexts[] = {
    {Instead::kBudgets,
     "every byte is planned within penstock.device_memory and penstock.host_memory"},
    {Instead::kOrder,
     "the order of a step is known in advance: reads run ahead, and updates run under the next "
     "forward (penstock.overlap)"},
    {Instead::kExchange,
     "what ranks send each other follows from zero_optimization.stage and penstock.gradient_order"},
    {Instead::kMetrics,
     "metrics.jsonl has times, rates, bytes and peaks of every step; --trace writes what ran when"},
    {Instead::kSummary, "summary.json has the configuration as it was understood"},
    {Instead::kNotices,
     "notices are always printed, and steps_per_print says how often progress is"},
    {Instead::kExport, "16-bit weights are written by `penstock export RUN --to DIR --dtype bf16`"},
    {Instead::kCommits,
     "the state file is the checkpoint: commits copy nothing and have checksums, which `penstock "
     "inspect RUN` verifies"},
    {Instead::kPlacement,
     "every commit resumes with other homes, tiles, paths and numbers of ranks"},
    {Instead::kStatePaths,
     "each rank's state lies in its nvme_path, which may be a drive of its own node, or in the "
     "folder of the run if no home is nvme"},
    {Instead::kUnusedPath, "the device beside it is not \"nvme\""},
    {Instead::kRecomputation,
     "the input of each layer is a checkpoint, at home in penstock.activation_home, and layers are "
     "computed again in backward"},
    {Instead::kNoTensorParallel,
     "it divides activations over tensor-parallel ranks, and there are none"},
    {Instead::kUpdate, "updates are penstock's own, fused, on penstock.optimizer_threads threads"},
    {Instead::kAnyOptimizer,
     "every optimizer that is accepted works with every stage and placement"},
    {Instead::kMoments, "moments live where zero_optimization.offload_optimizer says"},
    {Instead::kModules, "modules may be used in any order, or not at all"},
    {Instead::kChecks, "checks are always on"},
    {Instead::kPrecision,
     "a step computes in the model's type throughout, and a gradient is rounded to it once"},
    {Instead::kAccumulation,
     "gradients are always accumulated in fp32, and rounded once to the model's type"},
    {Instead::kModelConfig, "the model's config.json says it"},
    {Instead::kEpoch,
     "every batch is whole, and a run without --steps leaves out the rows that fill none"},
};

}  // namespace

std::string_view TextOf(Instead instead) {
  const auto* const found =
      std::ranges::find(kTexts, instead, [](const auto& one) { return one.first; });
  PENSTOCK_CHECK(found != std::end(kTexts));
  return found->second;
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
