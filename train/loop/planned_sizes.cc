#include "train/loop/planned_sizes.h"

#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "train/loop/planned_model.h"
#include "train/loop/trainer_job.h"
#include "train/process/files.h"
#include "train/process/log.h"
#include "train/sizing/deepspeed_estimate.h"
#include "train/sizing/model_shape.h"
#include "train/sizing/topology_table.h"

namespace penstock::train {
namespace {

constexpr Bytes kLargestTable = 16_MiB;

Result<uint64_t> GlobalBatch(const PlanCommand& command) {
  if (command.global_batch > 0) return command.global_batch;
  TrainOptions options;
  options.configs = command.configs;
  options.auto_flags = command.auto_flags;
  // Data-parallel ranks are what the topologies differ in; the batch is what they share.
  PENSTOCK_ASSIGN(const config::Config config, ReadConfig(options, command.ranks));
  return config.train_batch_size;
}

}  // namespace

Result<std::string> ReportDeepSpeed(const PlanCommand& command) {
  PENSTOCK_ASSIGN(const CountedModel model, CountModel(command.model));
  const EstimateInput input = {.parameters = model.parameters,
                               .largest_module = model.largest_module,
                               .gpus_per_node = command.ranks / command.nodes,
                               .nodes = command.nodes};
  return command.json ? EstimateJson(input).dump(2) + "\n" : EstimateText(input);
}

Result<std::string> ReportTopologies(const PlanCommand& command) {
  if (!IsModelShape(command.model)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--topologies: --model {} is no name with shape; give one such as "
                     "gpt2:h=12288,l=96,v=50257,s=2048",
                     command.model);
  }
  PENSTOCK_ASSIGN(const ModelShape shape, ParseModelShape(command.model));
  Cluster cluster;
  if (command.device_memory) cluster.memory = *command.device_memory;
  std::vector<TopologyRow> rows;
  if (command.topologies->empty()) {
    PENSTOCK_ASSIGN(const uint64_t batch, GlobalBatch(command));
    rows = EnumerateTopologies(shape, {.gpus = command.ranks, .global_batch = batch});
  } else {
    PENSTOCK_ASSIGN(const std::string text, ReadTextFile(*command.topologies, kLargestTable));
    PENSTOCK_ASSIGN(TopologyTable table,
                    ParseTopologyTable(text, *command.topologies, shape, cluster));
    LogNotices(table.notices);
    rows = std::move(table.rows);
  }
  const std::vector<JudgedTopology> judged = JudgeTopologies(rows, {.cluster = cluster});
  return command.json ? TopologiesJson(judged).dump(2) + "\n" : TopologiesText(judged);
}

}  // namespace penstock::train
