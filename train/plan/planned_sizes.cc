#include "train/plan/planned_sizes.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/files.h"
#include "base/units.h"
#include "sizing/deepspeed_estimate.h"
#include "sizing/model_shape.h"
#include "sizing/shape_report.h"
#include "sizing/tensor_share.h"
#include "sizing/topology_table.h"
#include "sizing/training_time.h"
#include "train/plan/batch_rampup.h"
#include "train/plan/planned_model.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

constexpr Bytes kMaxTable = 16_MiB;

/// The shape of the model. Errors: those of ReadPlannedModel; kInvalidArgument if it has none.
Result<ModelShape> ShapeFor(const PlanCommand& command, const char* option) {
  PENSTOCK_ASSIGN(const PlannedModel model, ReadPlannedModel(command.model));
  if (model.shape) return *model.shape;
  return MakeError(ErrorCode::kInvalidArgument,
                   "{}: the sizes of {} are not known; give a name with shape such as "
                   "gpt2:h=12288,l=96,v=50257,s=2048",
                   option, command.model);
}

/// What topologies share: the cluster, and the batch that a config gives.
struct SharedSetup {
  TopologyJudge judge;
  uint64_t global_batch = 0;
};

Result<SharedSetup> SetupOf(const PlanCommand& command) {
  SharedSetup setup{.global_batch = command.global_batch};
  Cluster& cluster = setup.judge.cluster;
  if (command.device_memory) cluster.memory = *command.device_memory;
  if (command.nodes > 1) cluster.gpus_per_node = command.ranks / command.nodes;
  if (command.speed.device_tflops) cluster.matrix_tflops = *command.speed.device_tflops;
  if (command.speed.link_gbps) cluster.network_gbps = *command.speed.link_gbps;
  if (command.configs.empty()) return setup;
  // Data-parallel ranks are what the topologies differ in; the batch is what they share.
  PENSTOCK_ASSIGN(
      const config::Config config,
      ReadConfig({.files = command.configs, .auto_flags = command.auto_flags}, command.ranks));
  if (setup.global_batch == 0) setup.global_batch = config.train_batch_size;
  setup.judge.growth = GrowthOf(config);
  cluster.fp32_accumulation = config.dtype == DType::kBFloat16;
  return setup;
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
  PENSTOCK_ASSIGN(const ModelShape shape, ShapeFor(command, "--topologies"));
  PENSTOCK_ASSIGN(const SharedSetup setup, SetupOf(command));
  std::vector<TopologyRow> rows;
  if (command.topologies->empty()) {
    rows = EnumerateTopologies(shape, {.gpus = command.ranks, .global_batch = setup.global_batch});
  } else {
    PENSTOCK_ASSIGN(const std::string text, ReadTextFile(*command.topologies, kMaxTable));
    PENSTOCK_ASSIGN(TopologyTable table,
                    ParseTopologyTable(text, *command.topologies, shape, setup.judge.cluster));
    LogNotices(table.notices);
    rows = std::move(table.rows);
  }
  const std::vector<JudgedTopology> judged = JudgeTopologies(rows, setup.judge);
  return command.json ? TopologiesJson(judged).dump(2) + "\n" : TopologiesText(judged);
}

Result<std::string> ReportTensorShares(const PlanCommand& command) {
  PENSTOCK_ASSIGN(const ModelShape shape, ShapeFor(command, "--tensor-parallel"));
  if (!command.json) return ShapeText(shape) + TensorShareText(shape, command.tensor_parallel);
  nlohmann::json json = ShapeJson(shape);
  json["shares"] = TensorShareJson(shape, command.tensor_parallel);
  return json.dump(2) + "\n";
}

Result<std::string> ReportTraining(const PlanCommand& command) {
  PENSTOCK_ASSIGN(const ModelShape shape, ShapeFor(command, "--tokens"));
  const TrainingTime time =
      TimeBySpeed({.parameters = static_cast<double>(CountParameters(shape).total()),
                   .tokens = command.training_tokens,
                   .gpus = command.ranks,
                   .tflops = *command.speed.device_tflops,
                   .step_tokens = SaturatingMultiply(command.global_batch, shape.sequence)});
  if (!command.json) {
    return ShapeText(shape) + fmt::format("{:g} tokens on {} GPUs of {:g} TFLOP/s: {}\n",
                                          command.training_tokens, command.ranks,
                                          *command.speed.device_tflops, TrainingTimeText(time));
  }
  nlohmann::json json = ShapeJson(shape);
  json["training"] = TrainingTimeJson(time);
  return json.dump(2) + "\n";
}

}  // namespace penstock::train
