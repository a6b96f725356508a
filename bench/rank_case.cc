#include "bench/rank_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "zero/plan/partitioner.h"

namespace penstock::bench {
namespace {

constexpr uint64_t kHeadElements = 4096;
// Bytes of a bf16 element: reads of a weight for forward and backward and of the states, and an
// update's writes.
constexpr double kReadBytes = 14;
constexpr double kWriteBytes = 12;

/// What a use moves over the link, in all micro-batches.
struct UseTraffic {
  sim::LinkParts gather;
  sim::LinkParts exchange;
};

UseTraffic TrafficOf(const RankPlan& plan, uint64_t use, uint64_t micro_batches) {
  const offload::ScheduledUse& planned = plan.schedule.uses[use];
  UseTraffic traffic;
  if (planned.fetch) traffic.gather = sim::GatherParts(plan.layout, planned.module);
  for (uint64_t i = 0; planned.backward && i < micro_batches; ++i) {
    const sim::LinkParts parts = sim::ExchangeParts(plan.layout, planned.module, DType::kFloat32);
    traffic.exchange.insert(traffic.exchange.end(), parts.begin(), parts.end());
  }
  return traffic;
}

}  // namespace

zero::ModelSpec SpecOf(const RankModel& model) {
  zero::ModelSpec spec;
  const auto id = [](uint64_t module) { return zero::ModuleId{static_cast<uint32_t>(module)}; };
  for (uint64_t i = 0; i < model.layers; ++i) {
    const std::string name = fmt::format("layer.{}", i);
    spec.modules.push_back(
        {.name = name, .tensors = {{name + ".weight", {model.layer_elements}}}, .repeated = true});
    spec.step.push_back({id(i), false});
  }
  spec.modules.push_back({.name = "head", .tensors = {{"head.weight", {kHeadElements}}}});
  spec.step.push_back({id(model.layers), true});
  spec.gradients.push_back(id(model.layers));
  for (uint64_t i = model.layers; i-- > 0;) {
    spec.step.push_back({id(i), true});
    spec.gradients.push_back(id(i));
  }
  return spec;
}

std::vector<double> ComputeOf(const RankModel& model, const zero::ModelSpec& spec) {
  const double forward_s = model.compute_s / static_cast<double>(3 * model.layers + 1);
  std::vector<double> compute;
  for (const zero::ModuleUse& use : spec.step) {
    const bool layer_backward = use.backward && offload::Index(use.module) < model.layers;
    compute.push_back(layer_backward ? 2 * forward_s : forward_s);
  }
  return compute;
}

config::Config ConfigOf(const RankCase& rank_case) {
  config::Config config;
  config.micro_batch_size = 1;
  config.gradient_accumulation_steps = rank_case.model.micro_batches;
  config.train_batch_size = rank_case.model.micro_batches * rank_case.ranks;
  config.dtype = kernels::DType::kBFloat16;
  config.check_grad_overflow = true;
  config.parameter_home = Tier::kNvme;
  config.optimizer_home = Tier::kNvme;
  config.tile_elements = rank_case.tile_elements;
  config.tier_split = false;
  config.optimizer_threads = rank_case.optimizer_threads;
  config.compute_threads = 1;
  config.optimizer.hyper = kernels::AdamHyperparameters{};
  config.aio.block_size = rank_case.drive.block;
  config.aio.queue_depth = rank_case.drive.queue_depth;
  config.aio.simulate =
      aio::SimulatedDrive{.read_gbps = rank_case.drive.read_bytes_a_second / 1e9,
                          .write_gbps = rank_case.drive.write_bytes_a_second / 1e9,
                          .shared = rank_case.drive.shared,
                          .latency_us = rank_case.drive.latency * 1e6};
  return config;
}

Result<RankPlan> PlanOf(const RankCase& rank_case) {
  const config::Config config = ConfigOf(rank_case);
  RankPlan plan{.spec = SpecOf(rank_case.model)};
  plan.layout = zero::MakeLayout(plan.spec, config, {.size = rank_case.ranks});
  plan.device_memory =
      zero::DeviceNeed(
          plan.spec, plan.layout, config,
          {.shared_slots = rank_case.slots, .gradient_buffers = 2, .stages_layers = true})
          .total();
  PENSTOCK_ASSIGN(plan.memory, zero::PlanMemory(plan.spec, plan.layout, config, plan.device_memory,
                                                rank_case.host_memory));
  plan.schedule = zero::BuildSchedule(plan.spec, plan.layout, plan.memory.shared_slots,
                                      zero::StartOfUpdates(config));
  return plan;
}

double ResourceTimes::floor_s() const { return std::max({compute_s, drive_s, link_s}); }

const char* ResourceTimes::bound() const {
  if (compute_s == floor_s()) return "compute";
  return link_s == floor_s() ? "link" : "drive";
}

ResourceTimes TimesOf(const RankCase& rank_case, const RankPlan& plan, const DriveBytes& bytes) {
  const std::vector<double> compute = ComputeOf(rank_case.model, plan.spec);
  ResourceTimes times;
  struct Phase {
    double compute_s = 0;
    double link_s = 0;
  };
  Phase phases[2];  // forward, backward
  for (uint64_t use = 0; use < plan.schedule.length(); ++use) {
    const UseTraffic traffic = TrafficOf(plan, use, rank_case.model.micro_batches);
    Phase& phase = phases[plan.schedule.uses[use].backward ? 1 : 0];
    phase.compute_s += compute[use];
    phase.link_s += sim::TimeOf(rank_case.link, traffic.gather, rank_case.ranks) +
                    sim::TimeOf(rank_case.link, traffic.exchange, rank_case.ranks);
  }
  for (const Phase& phase : phases) {
    times.compute_s += phase.compute_s;
    times.link_s += phase.link_s;
    times.phases_s += std::max(phase.compute_s, phase.link_s);
  }
  const sim::DriveSpeed& drive = rank_case.drive;
  const double read_s = bytes.read / drive.read_bytes_a_second;
  if (drive.shared) {
    times.drive_s = read_s + bytes.written / drive.read_bytes_a_second;
  } else {
    times.drive_s = std::max(read_s, bytes.written / drive.write_bytes_a_second);
  }
  return times;
}

double LinkBytes(const RankPlan& plan, uint64_t micro_batches) {
  Bytes sent;
  for (uint64_t use = 0; use < plan.schedule.length(); ++use) {
    const UseTraffic traffic = TrafficOf(plan, use, micro_batches);
    sent += sim::SentBytes(traffic.gather, plan.layout.world_size) +
            sim::SentBytes(traffic.exchange, plan.layout.world_size);
  }
  return static_cast<double>(sent.value);
}

DriveBytes MostDriveBytes(const RankPlan& plan) {
  const auto elements = static_cast<double>(plan.layout.shard_elements());
  return {.read = kReadBytes * elements, .written = kWriteBytes * elements};
}

}  // namespace penstock::bench
