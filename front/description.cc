#include "front/description.h"

#include <nlohmann/json.hpp>

#include "config/to_json.h"
#include "offload/state_format.h"
#include "zero/engine/memory_plan.h"

namespace penstock::front {
namespace {

using nlohmann::ordered_json;
using offload::ModuleId;

/// A tensor lies in its unit's buffer as it does in the module's slot.
ordered_json TensorJson(const offload::ShardLayout& layout, ModuleId module,
                        const offload::TensorLayout& tensor) {
  const offload::GroupLayout& group = layout.model.group(tensor.group);
  const auto dtype = static_cast<DType>(group.planes.weight().encoding);
  return {{"offset", layout.SlotOffset(module, tensor.offset).value},
          {"bytes", (SizeOf(dtype) * tensor.elements).value},
          {"trained", !group.frozen}};
}

ordered_json UnitsJson(const Training& training) {
  const offload::ShardLayout& layout = training.layout();
  ordered_json units = ordered_json::array();
  for (const ModuleId id : offload::Ids<ModuleId>(layout.model.modules.size())) {
    ordered_json tensors = ordered_json::array();
    for (const offload::TensorLayout& tensor : layout.module(id).tensors) {
      tensors.push_back(TensorJson(layout, id, tensor));
    }
    units.push_back({{"bytes", layout.SlotBytes(id).value},
                     {"filled", training.life().filled(id)},
                     {"tensors", std::move(tensors)}});
  }
  return units;
}

/// The caller's buffers: those that repeated units share, and those that the others keep.
ordered_json CallersBytes(const Plan& plan) {
  Bytes kept;
  Bytes largest;
  for (const ModuleId id : offload::Ids<ModuleId>(plan.layout.model.modules.size())) {
    const Bytes size = plan.layout.SlotBytes(id);
    if (plan.engine.model.modules[offload::Index(id)].repeated) {
      largest = std::max(largest, size);
    } else {
      kept += size;
    }
  }
  return {{"slots", (largest * plan.slots).value},
          {"kept", kept.value},
          {"sums", plan.device_sums.value}};
}

/// What the engine takes of the device: nothing, unless states are at home there.
ordered_json EnginesDeviceBytes(const DeviceHomeBytes& bytes) {
  return {{"parameters", bytes.parameters.value},
          {"gradients", bytes.gradients.value},
          {"states", bytes.states.value},
          {"sums", bytes.sums.value},
          {"total", bytes.total().value}};
}

/// The newest commit; null if there is none.
ordered_json CommitJson(const zero::CommitLife& commits) {
  if (!commits.newest()) return nullptr;
  return {{"step", *commits.newest()},
          {"confirmed", commits.confirmed()},
          {"doubtful", commits.doubtful()}};
}

}  // namespace

std::string DescribeTraining(const Training& training) {
  const zero::StateIo& io = training.io();
  const config::Config& config = training.config();
  const ordered_json json{{"step", training.counts().step},
                          {"optimizer_steps", training.counts().optimizer_steps},
                          {"loss_scale", training.loss_scale()},
                          {"commit", CommitJson(training.life().commits())},
                          {"uuid", io.uuid},
                          {"state_paths", io.paths},
                          {"continued", training.continued().has_value()},
                          {"moved", training.moved()},
                          {"aio_engine", io.engine_name()},
                          {"optimizer_threads", io.threads.counts.optimizer},
                          {"notices", training.notices()},
                          {"warnings", training.warnings()},
                          {"host_bytes", training.engine().host_peak().value},
                          {"slots", training.slots()},
                          {"micro_batches", config.gradient_accumulation_steps},
                          {"sums_on_device", training.sums_on_device()},
                          {"gradient_clipping", config.gradient_clipping},
                          {"commit_every_steps", config.commit_every_steps},
                          {"units", UnitsJson(training)}};
  return json.dump();
}

std::string DescribeCounters(const Training& training) {
  const zero::EngineCounters counters = training.engine().counters();
  const ordered_json json{{"nvme_read_bytes", counters.nvme_read_bytes},
                          {"nvme_write_bytes", counters.nvme_write_bytes},
                          {"nvme_init_bytes", counters.nvme_init_bytes},
                          {"nvme_commit_bytes", counters.nvme_commit_bytes},
                          {"nvme_verify_bytes", counters.nvme_verify_bytes},
                          {"evictions", counters.evictions},
                          {"updates", counters.updates},
                          {"late_uses", training.life().late_uses()},
                          {"gradient_waits", training.gradient_waits()},
                          {"registered_bytes", training.registered_bytes().value},
                          {"host_peak_bytes", training.engine().host_peak().value}};
  return json.dump();
}

std::string DescribeLines(const std::vector<std::string>& lines) {
  return ordered_json(lines).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string DescribePlan(const Plan& plan) {
  const Result<zero::MemoryPlan> memory = PlanStore(plan);
  const zero::ModelSpec& model = plan.engine.model;
  const config::Config& config = plan.engine.config;
  const Bytes minimum = zero::MinimumMemory(model, plan.layout, config).host_minimum;
  const Bytes own = plan.engine.host_reserved;
  const Bytes own_minimum = own - plan.arriving + plan.arriving_minimum;
  zero::HostBytes need;
  if (memory.ok()) need = zero::HostNeed(plan.layout, config, *memory);
  ordered_json json{
      {"fits", memory.ok()},
      {"host_bytes",
       {{"parameters", need.parameters.value},
        {"gradients", need.gradients.value},
        {"states", need.states.value},
        {"sums", plan.sums.value},
        {"arriving", plan.arriving.value},
        {"reading", plan.reading.value},
        {"bookkeeping", need.bookkeeping.value},
        {"total", memory.ok() ? (need.total() + own).value : 0}}},
      {"host_minimum", (minimum + own_minimum).value},
      {"host_limit", plan.engine.host_memory.value},
      {"device_bytes", CallersBytes(plan)},
      {"device_home_bytes", EnginesDeviceBytes(plan.device)},
      {"state_file_bytes", offload::StateFileBytes(plan.layout, config.durable ? 2 : 1,
                                                   plan.engine.state_folders.size())
                               .value},
      {"verify_commits", memory.ok() && memory->verification.on},
      {"shortage", nullptr},
      {"notices", plan.notices}};
  if (!memory.ok()) json["shortage"] = memory.error().message;
  json["config"] = ordered_json::parse(config::ConfigToJson(config));
  return json.dump();
}

}  // namespace penstock::front
