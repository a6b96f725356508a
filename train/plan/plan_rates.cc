#include "train/plan/plan_rates.h"

#include <algorithm>

#include "sizing/batch_rampup.h"
#include "train/plan/batch_rampup.h"

namespace penstock::train {
namespace {

/// Bytes that a step writes on average, with its share of a commit.
double WrittenByStep(const RunPlan& plan) {
  const auto of_step = static_cast<double>(plan.step->write_bytes);
  if (!plan.commit.steps_apart) return of_step;
  return of_step + static_cast<double>(plan.commit.bytes.value) / *plan.commit.steps_apart;
}

/// Of a node. Each rank has simulated ones of its own.
uint64_t DrivesOf(const config::Config& config, uint32_t ranks) {
  const uint64_t paths = std::max<size_t>(1, config.nvme_paths.size());
  return config.aio.simulate ? paths * ranks : paths;
}

RampTime RampOf(const RunPlan& plan, const config::Config& config) {
  const StepEstimate& step = *plan.step;
  const StepFloors& floors = step.floors;
  const auto batch = static_cast<double>(config.train_batch_size);
  StepTimeLines lines = {{.fixed_s = floors.update.value_or(0) + floors.copies.value_or(0),
                          .sample_s = *floors.compute / batch}};
  if (step.link_bytes > 0 && floors.link) {
    const double fixed = *floors.link * static_cast<double>(step.fixed_link_bytes) /
                         static_cast<double>(step.link_bytes);
    lines.push_back({.fixed_s = fixed, .sample_s = (*floors.link - fixed) / batch});
  }
  return TimeOfRamp(RampupOf(config), config.rampup->samples, lines, *floors.drive);
}

}  // namespace

PlanRates RatesOf(const RunPlan& plan, const config::Config& config,
                  const PlanQuestions& questions) {
  PlanRates rates;
  if (!plan.step || !plan.step->step_s) return rates;
  const StepEstimate& step = *plan.step;
  const auto tokens = static_cast<double>(plan.tokens);
  rates.tokens_per_s = tokens / *step.step_s;
  rates.tflops = plan.cost.FlopsPerStep(plan.tokens) / *step.step_s / 1e12;
  rates.hardware_tflops = plan.cost.HardwareFlopsPerStep(plan.tokens) / *step.step_s / 1e12;
  if (step.floors.compute > 0.0) {
    rates.hidden_tokens = tokens * *step.floors.drive / *step.floors.compute;
  }
  const double written = WrittenByStep(plan) * questions.ranks_of_drive;
  if (written > 0) {
    rates.wear = WearOf(Bytes{static_cast<uint64_t>(written)}, *step.step_s, questions.rating,
                        DrivesOf(config, questions.ranks_of_drive));
  }
  if (questions.training_tokens > 0) {
    rates.training =
        TimeBySteps(questions.training_tokens, plan.tokens, *step.step_s, questions.ranks);
  }
  if (config.rampup) rates.ramp = RampOf(plan, config);
  return rates;
}

}  // namespace penstock::train
