#include "train/trainer/planned_run.h"

#include <fmt/format.h>

#include "train/plan/run_plan.h"

namespace penstock::train {
namespace {

/// The first step follows no update, and the last waits for all updates: fewer steps than this are
/// not compared.
constexpr uint64_t kStepsToCompare = 10;
constexpr double kBytesApart = 0.05;
constexpr double kTimeApart = 0.2;

PlanFigures FiguresOf(const RunPlan& plan) {
  PlanFigures figures{.device_peak_bytes = plan.device_peak().value,
                      .host_peak_bytes = plan.host_peak().value};
  if (!plan.step) return figures;
  figures.nvme_read_bytes_per_step = static_cast<double>(plan.step->read_bytes);
  figures.nvme_write_bytes_per_step = static_cast<double>(plan.step->write_bytes);
  figures.step_s = plan.step->step_s;
  return figures;
}

PlanFigures FiguresOf(const LoopSummary& loop, uint32_t ranks) {
  const auto per_step = [&](uint64_t begin, uint64_t end) {
    return static_cast<double>(end - begin) / static_cast<double>(loop.steps) / ranks;
  };
  PlanFigures figures{.device_peak_bytes = loop.end.device_peak.value,
                      .host_peak_bytes = loop.end.host_peak.value};
  if (loop.steps == 0) return figures;
  figures.nvme_read_bytes_per_step =
      per_step(loop.begin.counters.nvme_read_bytes, loop.end.counters.nvme_read_bytes);
  figures.nvme_write_bytes_per_step =
      per_step(loop.begin.counters.nvme_write_bytes, loop.end.counters.nvme_write_bytes);
  figures.step_s = loop.seconds() / static_cast<double>(loop.steps);
  return figures;
}

/// The allowed deviation of a measured figure, as shares of the planned one.
struct Tolerance {
  double above;
  double below;
};

std::string Part(const char* what, double planned, double measured, Tolerance apart) {
  const double ratio = planned > 0 ? measured / planned : 1;
  if (ratio <= 1 + apart.above && ratio >= 1 - apart.below) return "";
  return fmt::format("; {}: planned {:.4g}, measured {:.4g}", what, planned, measured);
}

}  // namespace

std::optional<PlannedAndMeasured> HoldAgainstPlan(const TrainJob& job, const LoopSummary& loop) {
  const Result<RunPlan> plan =
      PlanRun(job.planned(), {.device = job.budget.device, .host = job.budget.host, .drive = {}},
              job.speed.value_or(MachineSpeed()));
  if (!plan.ok()) return {};
  return PlannedAndMeasured{.planned = FiguresOf(*plan),
                            .measured = FiguresOf(loop, job.world.size)};
}

std::string PlanNotice(const PlannedAndMeasured& figures, uint64_t steps, uint64_t skipped) {
  if (steps < kStepsToCompare) return "";
  // A skipped step has no update: it moves fewer bytes and takes less time than planned.
  const double left_out = static_cast<double>(skipped) / static_cast<double>(steps);
  const Tolerance peak = {.above = kBytesApart, .below = kBytesApart};
  const Tolerance bytes = {.above = kBytesApart, .below = kBytesApart + left_out};
  const Tolerance time = {.above = kTimeApart, .below = kTimeApart + left_out};
  const PlanFigures& planned = figures.planned;
  const PlanFigures& measured = figures.measured;
  const auto number = [](uint64_t bytes) { return static_cast<double>(bytes); };
  std::string parts = Part("device peak in bytes", number(planned.device_peak_bytes),
                           number(measured.device_peak_bytes), peak) +
                      Part("host peak in bytes", number(planned.host_peak_bytes),
                           number(measured.host_peak_bytes), peak) +
                      Part("bytes read a step", planned.nvme_read_bytes_per_step,
                           measured.nvme_read_bytes_per_step, bytes) +
                      Part("bytes written a step", planned.nvme_write_bytes_per_step,
                           measured.nvme_write_bytes_per_step, bytes);
  if (planned.step_s && measured.step_s) {
    parts += Part("seconds of a step", *planned.step_s, *measured.step_s, time);
  }
  if (parts.empty()) return "";
  return "the run differs from its plan" + parts + "; penstock plan lists its assumptions";
}

}  // namespace penstock::train
