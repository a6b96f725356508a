#include "sizing/topology_rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "sizing/quantization.h"

namespace penstock::train {
namespace {

void CheckGpus(const Topology& t, std::vector<TopologyReason>* reasons) {
  if (t.product() == t.gpus) return;
  reasons->push_back({"gpus", fmt::format("DP·TP·PP = {}·{}·{} = {}, but there are {} GPUs", t.data,
                                          t.tensor, t.pipeline, t.product(), t.gpus)});
}

void CheckBatch(const Topology& t, std::vector<TopologyReason>* reasons) {
  const uint64_t unit = SaturatingMultiply(t.data, t.micro_batch);
  if (t.global_batch % unit == 0) return;
  reasons->push_back({"batch", fmt::format("GBS {} is no multiple of DP·MBS = {}·{} = {}",
                                           t.global_batch, t.data, t.micro_batch, unit)});
}

void CheckGrowth(const Topology& t, const std::optional<BatchGrowth>& growth,
                 std::vector<TopologyReason>* reasons) {
  if (!growth) return;
  const uint64_t unit = SaturatingMultiply(t.data, t.micro_batch);
  const std::optional<uint64_t> batch = FirstUnevenBatch(*growth, t.global_batch, unit);
  if (!batch) return;
  if (*batch == t.global_batch) {
    reasons->push_back({"ramp-up", fmt::format("increments of {} from {} on do not meet GBS {}",
                                               growth->increment, growth->start, t.global_batch)});
  } else {
    reasons->push_back(
        {"ramp-up", fmt::format("the ramp-up's batch of {} is no multiple of DP·MBS = {}·{} = {}",
                                *batch, t.data, t.micro_batch, unit)});
  }
}

void CheckShape(const ModelShape& shape, const Topology& t, std::vector<TopologyReason>* reasons) {
  if (shape.heads % t.tensor != 0) {
    reasons->push_back(
        {"heads", fmt::format("TP {} does not divide {} heads", t.tensor, shape.heads)});
  }
  if (shape.width % t.tensor != 0) {
    reasons->push_back(
        {"width", fmt::format("TP {} does not divide h = {}", t.tensor, shape.width)});
  }
  const uint64_t layers = shape.layers + shape.decoder_layers;
  if (t.pipeline > layers) {
    reasons->push_back({"layers", fmt::format("PP {} is more than {} layers", t.pipeline, layers)});
  }
}

std::string UnevenStages(uint64_t layers, uint64_t pipeline) {
  const uint64_t most = layers / pipeline + 1;
  const uint64_t full = layers / most;
  std::string text =
      fmt::format("{} layers over PP {}: {} stages of {}", layers, pipeline, full, most);
  const uint64_t rest = layers - full * most;
  if (rest > 0) text += fmt::format(", one of {}", rest);
  const uint64_t empty = pipeline - full - (rest > 0 ? 1 : 0);
  if (empty > 0) text += fmt::format(", {} of none", empty);
  return text;
}

}  // namespace

std::optional<uint64_t> FirstUnevenBatch(const BatchGrowth& growth, uint64_t end, uint64_t unit) {
  if (growth.start % unit != 0) return growth.start;
  if (growth.start > end || (end - growth.start) % growth.increment != 0) return end;
  if (growth.start < end && growth.increment % unit != 0) return growth.start + growth.increment;
  return std::nullopt;
}

std::vector<TopologyReason> BrokenRules(const Topology& topology,
                                        const std::optional<BatchGrowth>& growth) {
  std::vector<TopologyReason> reasons;
  CheckGpus(topology, &reasons);
  CheckBatch(topology, &reasons);
  CheckGrowth(topology, growth, &reasons);
  return reasons;
}

std::vector<TopologyReason> BrokenRules(const ModelShape& shape, const Topology& topology,
                                        const std::optional<BatchGrowth>& growth) {
  std::vector<TopologyReason> reasons = BrokenRules(topology, growth);
  CheckShape(shape, topology, &reasons);
  return reasons;
}

std::vector<std::string> TopologyWarnings(const ModelShape& shape, const Topology& t,
                                          const Cluster& cluster) {
  std::vector<std::string> warnings;
  const uint64_t layers = shape.layers + shape.decoder_layers;
  if (!SplitLayers(layers, t.pipeline).even) warnings.push_back(UnevenStages(layers, t.pipeline));
  if (t.tensor > cluster.gpus_per_node) {
    warnings.push_back(
        fmt::format("TP {} spans nodes of {} GPUs: all-reduces of every layer cross "
                    "the network",
                    t.tensor, cluster.gpus_per_node));
  }
  if (t.micro_batches() < static_cast<double>(t.pipeline)) {
    warnings.push_back(
        fmt::format("the pipeline is never full: it takes GBS {} (PP·MBS·DP)",
                    SaturatingMultiply(t.pipeline, SaturatingMultiply(t.micro_batch, t.data))));
  }
  const std::vector<std::string> hints = QuantizationHints(shape, t.tensor);
  warnings.insert(warnings.end(), hints.begin(), hints.end());
  return warnings;
}

}  // namespace penstock::train
