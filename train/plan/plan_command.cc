#include "train/plan/plan_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file_system.h"
#include "base/files.h"
#include "config/to_json.h"
#include "train/plan/plan_report.h"
#include "train/plan/planned_model.h"
#include "train/plan/planned_sizes.h"
#include "train/plan/run_plan.h"

namespace penstock::train {
namespace {

ConfigChoice ConfigOf(const PlanCommand& command) {
  ConfigChoice choice{.files = command.configs,
                      .auto_flags = command.auto_flags,
                      .device_memory = command.device_memory,
                      .host_memory = command.host_memory};
  if (!command.speed.tune.empty()) choice.files.push_back(command.speed.tune);
  return choice;
}

/// A GPU that is planned for need not be here.
Result<std::optional<Bytes>> GpuOf(const PlanCommand& command) {
  Result<std::optional<Bytes>> gpu = FindGpu(command.device);
  if (gpu.ok() || command.device != DeviceChoice::kCuda) return gpu;
  return std::optional<Bytes>();
}

Result<MemoryLimits> LimitsOf(const config::Config& config, device::Kind kind,
                              const std::optional<Bytes>& gpu, uint32_t local_ranks,
                              const std::optional<Bytes>& drive_capacity) {
  MemoryLimits limits;
  const auto machine = [&] { return ReadOfferedMemory(gpu, local_ranks); };
  PENSTOCK_ASSIGN(const MemoryBudget taken, TakeLimits(config, machine));
  limits.host = taken.host;
  // Of a GPU that is not here only a limit that was given is known.
  if (kind == device::Kind::kCpu || gpu || config.device_memory) limits.device = taken.device;
  limits.drive = drive_capacity ? drive_capacity : FreeSpaceTogether(config.nvme_paths);
  if (limits.drive) limits.drive = Bytes{limits.drive->value / local_ranks};
  return limits;
}

/// Everything that a plan and its alternatives have in common.
class Planner {
 public:
  static Result<Planner> Create(const PlanCommand& command) {
    Planner planner(command);
    PENSTOCK_ASSIGN(planner.model_, ReadPlannedModel(command.model));
    PENSTOCK_ASSIGN(planner.gpu_, GpuOf(command));
    planner.spec_ = planner.model_.description->Spec();
    Alternative& given = planner.given_;
    given.ranks = command.ranks;
    PENSTOCK_ASSIGN(given.config, ReadConfig(ConfigOf(command), command.ranks));
    PENSTOCK_ASSIGN(given.sequence, SequenceLength(command.sequence_length,
                                                   planner.model_.description->sizes().positions,
                                                   planner.model_.name));
    const comm::World world = planner.WorldOf(command.ranks);
    ChooseThreads(planner.kind(), {.sharing = world.local_size, .bound = false}, &given.config);
    PENSTOCK_ASSIGN(planner.limits_, LimitsOf(given.config, planner.kind(), planner.gpu_,
                                              world.local_size, command.drive_capacity));
    PENSTOCK_ASSIGN(planner.speed_, FindSpeed(command.speed, planner.TrainingOf(given)));
    return planner;
  }

  const Alternative& given() const { return given_; }

  Result<RunPlan> Plan(const Alternative& setup) const {
    return PlanRun(TrainingOf(setup), limits_, SpeedOf(setup).machine);
  }

  Result<std::optional<RunPlan>> PlanIfFits(const Alternative& setup) const {
    return train::PlanIfFits(TrainingOf(setup), limits_, SpeedOf(setup).machine);
  }

  PlannedSetup SetupOf(const Alternative& setup) const {
    return {.model = model_.name,
            .device = kind() == device::Kind::kCuda ? "cuda" : "cpu",
            .speeds = SpeedOf(setup).origin,
            .config = setup.config,
            .sequence = setup.sequence,
            .questions = {.ranks = setup.ranks,
                          .ranks_of_drive = WorldOf(setup.ranks).local_size,
                          .training_tokens = command_.training_tokens,
                          .rating = command_.rating},
            .shape = model_.shape,
            .stands_in = model_.stands_in};
  }

 private:
  explicit Planner(const PlanCommand& command) : command_(command) {}

  device::Kind kind() const {
    const bool cuda = gpu_ || command_.device == DeviceChoice::kCuda;
    return cuda ? device::Kind::kCuda : device::Kind::kCpu;
  }
  /// The first of the ranks, which has the largest share; nodes grow with the ranks of a choice.
  comm::World WorldOf(uint32_t ranks) const {
    return {.size = ranks, .local_size = command_.ranks / command_.nodes};
  }
  /// It borrows the setup's config.
  PlannedTraining TrainingOf(const Alternative& setup) const {
    return {.spec = spec_,
            .model = *model_.description,
            .shape = ShapeOf(setup.config, setup.sequence, setup.ranks),
            .config = setup.config,
            .kind = kind(),
            .world = WorldOf(setup.ranks)};
  }
  PlannedSpeed SpeedOf(const Alternative& setup) const {
    return WithDriveAndLink(speed_, command_.speed, TrainingOf(setup));
  }

  const PlanCommand& command_;
  PlannedModel model_;
  zero::ModelSpec spec_;
  std::optional<Bytes> gpu_;
  Alternative given_;
  MemoryLimits limits_;  ///< read once, so that all are held against the same
  PlannedSpeed speed_;   ///< measured once
};

/// What the best of the choices are, a line each.
std::string ChoicesText(const std::vector<Choice>& choices, size_t most) {
  std::string text;
  for (size_t i = 0; i < std::min(choices.size(), most); ++i) {
    const RunPlan& plan = choices[i].plan;
    const std::optional<double>& step = plan.step->step_s;
    text += fmt::format(
        "{:>2}. {}; device {}, host {}{}\n", i + 1,
        choices[i].changes.empty() ? "as it is" : choices[i].changes, ToString(plan.device_peak()),
        ToString(plan.host_peak()),
        step ? fmt::format(", step {:.3g} s, bound by {}", *step, plan.step->bound_by) : "");
  }
  return text;
}

nlohmann::ordered_json ChoicesJson(const Planner& planner, const std::vector<Choice>& choices,
                                   const GivenSpeed& speed) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Choice& choice : choices) {
    nlohmann::ordered_json one = ToJson(planner.SetupOf(choice.setup), choice.plan);
    config::Config config = choice.setup.config;
    // So that a run of it is held against this plan.
    if (speed.device_tflops) config.device_tflops = speed.device_tflops;
    if (speed.drive) {
      config.drive = {.read_gbps = speed.drive->read_gbps, .write_gbps = speed.drive->write_gbps};
    }
    one["changes"] = choice.changes;
    one["config"] = nlohmann::ordered_json::parse(config::ConfigToJson(config));
    all.push_back(std::move(one));
  }
  return all;
}

constexpr size_t kShownChoices = 10;
constexpr size_t kShownWays = 3;

/// What fits where the given setup does not: the fewest changes first.
Result<std::vector<Choice>> WaysToFit(const Planner& planner, const Planning& planning) {
  PENSTOCK_ASSIGN(std::vector<Choice> ways, Choose(planner.given(), PlanGoal::kMemory, planning));
  std::ranges::stable_sort(ways, {}, &Choice::changed);
  if (!ways.empty()) return ways;
  return ChooseSmaller(planner.given(), planning);
}

Result<std::string> ReportChoices(const PlanCommand& command, const Planner& planner,
                                  const Planning& planning) {
  PENSTOCK_ASSIGN(std::vector<Choice> choices, Choose(planner.given(), *command.choose, planning));
  std::string before;
  if (choices.empty()) {
    PENSTOCK_ASSIGN(choices, ChooseSmaller(planner.given(), planning));
    before = "nothing fits with this sequence length and number of ranks; what does:\n";
  }
  if (command.json) {
    return nlohmann::ordered_json{{"choices", ChoicesJson(planner, choices, command.speed)}}.dump(
               2) +
           "\n";
  }
  if (choices.empty()) return std::string("nothing fits: the model is too large for this memory\n");
  return before + ChoicesText(choices, kShownChoices);
}

}  // namespace

Result<std::string> MakePlanReport(const PlanCommand& command) {
  if (command.as_deepspeed) return ReportDeepSpeed(command);
  if (command.topologies) return ReportTopologies(command);
  if (!command.tensor_parallel.empty()) return ReportTensorShares(command);
  if (command.configs.empty()) return ReportTraining(command);
  PENSTOCK_ASSIGN(const Planner planner, Planner::Create(command));
  const Planning planning = [&](const Alternative& setup) { return planner.PlanIfFits(setup); };
  if (command.choose) return ReportChoices(command, planner, planning);
  PENSTOCK_ASSIGN(const RunPlan plan, planner.Plan(planner.given()));
  const PlannedSetup setup = planner.SetupOf(planner.given());
  if (command.json) return ToJson(setup, plan).dump(2) + "\n";
  std::string text = ToText(setup, plan);
  if (plan.fits()) return text;
  PENSTOCK_ASSIGN(const std::vector<Choice> ways, WaysToFit(planner, planning));
  if (ways.empty()) return text + "nothing that penstock can change makes it fit\n";
  return text + "what fits, the fewest changes first:\n" + ChoicesText(ways, kShownWays);
}

}  // namespace penstock::train
