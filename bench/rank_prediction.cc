#include "bench/rank_prediction.h"

#include <vector>

#include "sim/step.h"

namespace penstock::bench {
namespace {

constexpr uint64_t kWarmUp = 12;
constexpr uint64_t kSteps = 12;
// Seconds of a core for an element (docs/measurements.md has those of one machine), and of the bus
// for a byte. Neither bounds what is predicted here.
constexpr double kUpdateElement = 1e-9;
constexpr double kNormElement = kUpdateElement * 2 / 26;
constexpr double kCopyByte = 1 / 50e9;

}  // namespace

PredictedStep PredictRankStep(const RankCase& rank_case, const RankPlan& plan) {
  const std::vector<sim::StepTime> steps =
      sim::SimulateSteps({.layout = plan.layout,
                          .schedule = plan.schedule,
                          .gradients = plan.spec.gradients,
                          .updates = zero::StartOfUpdates(ConfigOf(rank_case)),
                          .store = plan.memory.store,
                          .compute = ComputeOf(rank_case.model, plan.spec),
                          .micro_batches = rank_case.model.micro_batches,
                          .exchange = {.repeated_buffers = plan.memory.gradient_buffers},
                          .staging = zero::GradientStaging(plan.spec, plan.layout, plan.memory)},
                         {.cores = static_cast<double>(rank_case.optimizer_threads),
                          .compute_threads = 0,
                          .optimizer_threads = rank_case.optimizer_threads,
                          .update_element = kUpdateElement,
                          .norm_element = kNormElement,
                          .copy_byte = kCopyByte,
                          .drive = rank_case.drive,
                          .link = rank_case.link},
                         kWarmUp + kSteps);
  PredictedStep mean;
  for (uint64_t i = kWarmUp; i < steps.size(); ++i) {
    mean.step_s += steps[i].step / kSteps;
    mean.drive.read += static_cast<double>(steps[i].read_bytes) / kSteps;
    mean.drive.written += static_cast<double>(steps[i].write_bytes) / kSteps;
  }
  return mean;
}

}  // namespace penstock::bench
