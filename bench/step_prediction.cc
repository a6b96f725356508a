#include "bench/step_prediction.h"

#include <vector>

#include "sim/step.h"
#include "train/models/gpt2.h"
#include "zero/engine/memory_plan.h"
#include "zero/plan/partitioner.h"
#include "zero/plan/step_decision.h"

namespace penstock::bench {
namespace {

constexpr uint64_t kWarmUp = 3;
constexpr uint64_t kSteps = 8;
// For an element, an update reads and writes 26 bytes, and block sums read 2.
constexpr double kSumsOfUpdate = 2.0 / 26.0;

sim::DriveSpeed SpeedOf(const MeasuredParts& parts, const config::Config& config) {
  sim::DriveSpeed speed{.block = config.aio.block_size, .queue_depth = config.aio.queue_depth};
  if (parts.simulate) {
    speed.read_bytes_a_second = parts.simulate->read_gbps * 1e9;
    speed.write_bytes_a_second = parts.simulate->write_gbps * 1e9;
    speed.shared = parts.simulate->shared;
    speed.latency = parts.simulate->latency_us * 1e-6;
  } else {
    speed.read_bytes_a_second = parts.io_bytes / parts.io_s;
    speed.shared = true;
  }
  return speed;
}

/// Returns the compute time of each use.
std::vector<sim::Seconds> ComputeOf(const zero::ModelSpec& model,
                                    const offload::ShardLayout& layout,
                                    const MeasuredParts& parts) {
  double elements[2] = {0, 0};  // used forwards, backwards
  const auto of = [&](const zero::ModuleUse& use) {
    return static_cast<double>(layout.module(use.module).elements);
  };
  for (const zero::ModuleUse& use : model.step) elements[use.backward ? 1 : 0] += of(use);
  std::vector<sim::Seconds> compute;
  for (const zero::ModuleUse& use : model.step) {
    const double phase = use.backward ? parts.backward_s : parts.forward_s;
    compute.push_back(phase * of(use) / elements[use.backward ? 1 : 0]);
  }
  return compute;
}

}  // namespace

Result<double> PredictStep(const StepModel& model, const StepMachine& machine,
                           const MeasuredParts& parts) {
  const config::Config& config = machine.config();
  const zero::ModelSpec spec = train::Gpt2Spec(model.config);
  const offload::ShardLayout layout = zero::MakeLayout(spec, config);
  PENSTOCK_ASSIGN(const zero::MemoryPlan memory,
                  zero::PlanMemory(spec, layout, config, machine.device_for_engine(),
                                   machine.host_for_engine()));
  const zero::UpdateStart updates = zero::StartOfUpdates(config);
  const offload::Schedule schedule =
      zero::BuildSchedule(spec, layout, memory.shared_slots, updates);
  const auto elements = static_cast<double>(layout.shard_elements());
  const double update_element = parts.adam_s * parts.cores / elements;
  const std::vector<sim::StepTime> steps =
      sim::SimulateSteps({.layout = layout,
                          .schedule = schedule,
                          .gradients = spec.gradients,
                          .updates = updates,
                          .store = memory.store,
                          .compute = ComputeOf(spec, layout, parts),
                          .staging = zero::GradientStaging(spec, layout, memory)},
                         {.cores = parts.cores,
                          .compute_threads = config.compute_threads,
                          .optimizer_threads = config.optimizer_threads,
                          .update_element = update_element,
                          .norm_element = kSumsOfUpdate * update_element,
                          .copy_byte = parts.copies_s / (6 * elements),
                          .io_byte = parts.io_bytes > 0 ? parts.io_cpu_s / parts.io_bytes : 0,
                          .drive = SpeedOf(parts, config)},
                         kWarmUp + kSteps);
  double seconds = 0;
  for (uint64_t i = kWarmUp; i < steps.size(); ++i) seconds += steps[i].step;
  return seconds / static_cast<double>(kSteps);
}

}  // namespace penstock::bench
