#include "train/plan/choose.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "train/plan/plan_report.h"

namespace penstock::train {
namespace {

constexpr uint32_t kMostTriedRanks = 1024;
/// Times that differ by less are the same to whoever chooses.
constexpr double kSameTime = 0.01;
/// A time that is not known comes after all others.
constexpr double kUnknownTime = std::numeric_limits<double>::infinity();

/// Homes of weights and of optimizer states.
constexpr std::array<std::pair<Tier, Tier>, 6> kPlacements = {{{Tier::kDevice, Tier::kDevice},
                                                               {Tier::kDevice, Tier::kHost},
                                                               {Tier::kDevice, Tier::kNvme},
                                                               {Tier::kHost, Tier::kHost},
                                                               {Tier::kHost, Tier::kNvme},
                                                               {Tier::kNvme, Tier::kNvme}}};

bool HasPlaces(const config::Config& config, std::pair<Tier, Tier> homes) {
  const bool nvme = homes.first == Tier::kNvme || homes.second == Tier::kNvme;
  return !nvme || !config.nvme_paths.empty();
}

config::Config WithPlacement(config::Config config, std::pair<Tier, Tier> homes) {
  config.parameter_home = homes.first;
  config.optimizer_home = homes.second;
  // A config has paths only where something lives there.
  if (homes.first != Tier::kNvme && homes.second != Tier::kNvme) config.nvme_paths.clear();
  // Whatever is not on the device needs it; one rank computes the same at every stage.
  if (homes.first != Tier::kDevice || homes.second != Tier::kDevice) config.zero_stage = 3;
  return config;
}

config::Config WithMicroBatch(config::Config config, uint64_t micro_batch) {
  config.gradient_accumulation_steps *= config.micro_batch_size / micro_batch;
  config.micro_batch_size = micro_batch;
  return config;
}

/// Says what is other than given, and counts it.
void Describe(const Alternative& given, Choice& choice) {
  const config::Config& now = choice.setup.config;
  const config::Config& before = given.config;
  std::vector<std::string> changes;
  if (now.parameter_home != before.parameter_home || now.optimizer_home != before.optimizer_home) {
    changes.push_back(PlacementText(now));
  }
  if (now.micro_batch_size != before.micro_batch_size) {
    changes.push_back(fmt::format("micro-batch {} with {} accumulated", now.micro_batch_size,
                                  now.gradient_accumulation_steps));
  }
  if (now.activation_home != before.activation_home) {
    changes.emplace_back(now.activation_home == Tier::kHost
                             ? "activation checkpoints on the host"
                             : "activation checkpoints on the device");
  }
  if (choice.setup.sequence != given.sequence) {
    changes.push_back(fmt::format("sequence length {}", choice.setup.sequence));
  }
  if (choice.setup.ranks != given.ranks) {
    changes.push_back(fmt::format("{} ranks", choice.setup.ranks));
  }
  choice.changed = static_cast<uint32_t>(changes.size());
  choice.changes = fmt::format("{}", fmt::join(changes, ", "));
}

std::vector<config::Config> Configs(const config::Config& given) {
  std::vector<config::Config> configs;
  for (const auto& homes : kPlacements) {
    if (!HasPlaces(given, homes)) continue;
    for (uint64_t micro = given.micro_batch_size;; micro /= 2) {
      for (const Tier home : {Tier::kDevice, Tier::kHost}) {
        config::Config config = WithMicroBatch(WithPlacement(given, homes), micro);
        config.activation_home = home;
        configs.push_back(std::move(config));
      }
      if (micro % 2 != 0) break;
    }
  }
  return configs;
}

Result<std::optional<Choice>> PlanChoice(const Alternative& given, Alternative setup,
                                         const Planning& planning) {
  PENSTOCK_ASSIGN(std::optional<RunPlan> plan, planning(setup));
  if (!plan) return std::optional<Choice>();
  Choice choice{.setup = std::move(setup)};
  choice.plan = *std::move(plan);
  Describe(given, choice);
  return std::optional(std::move(choice));
}

Bytes MemoryOf(const RunPlan& plan) { return plan.device_peak() + plan.host_peak(); }

/// The placement that takes the least: everything as far down as there is a place for it.
config::Config Smallest(const config::Config& given) {
  const Tier lowest = given.nvme_paths.empty() ? Tier::kHost : Tier::kNvme;
  config::Config config = WithPlacement(given, {lowest, lowest});
  uint64_t micro = config.micro_batch_size;
  while (micro % 2 == 0) micro /= 2;
  config = WithMicroBatch(config, micro);
  config.activation_home = Tier::kHost;
  return config;
}

}  // namespace

Result<std::vector<Choice>> Choose(const Alternative& given, PlanGoal goal,
                                   const Planning& planning) {
  std::vector<Choice> choices;
  bool knows_time = false;
  for (config::Config& config : Configs(given.config)) {
    PENSTOCK_ASSIGN(std::optional<Choice> choice,
                    PlanChoice(given, {std::move(config), given.sequence, given.ranks}, planning));
    if (!choice) continue;
    knows_time = knows_time || choice->plan.step->step_s;
    choices.push_back(*std::move(choice));
  }
  if (goal == PlanGoal::kSpeed && !choices.empty() && !knows_time) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--choose speed: the time of a step is not known; give --device-tflops, and "
                     "--drive or --tune");
  }
  std::ranges::stable_sort(choices, {}, [goal](const Choice& choice) {
    const double time =
        std::round(std::log(choice.plan.step->step_s.value_or(kUnknownTime)) / kSameTime);
    const auto memory = static_cast<double>(MemoryOf(choice.plan).value);
    return goal == PlanGoal::kSpeed ? std::tuple(time, choice.changed, memory)
                                    : std::tuple(memory, choice.changed, time);
  });
  return choices;
}

Result<std::vector<Choice>> ChooseSmaller(const Alternative& given, const Planning& planning) {
  std::vector<Choice> choices;
  const config::Config smallest = Smallest(given.config);
  for (uint64_t sequence = given.sequence / 2; sequence > 0; sequence /= 2) {
    PENSTOCK_ASSIGN(std::optional<Choice> choice,
                    PlanChoice(given, {smallest, sequence, given.ranks}, planning));
    if (!choice) continue;
    choices.push_back(*std::move(choice));
    break;
  }
  for (uint32_t ranks = 2 * given.ranks; ranks <= kMostTriedRanks; ranks *= 2) {
    PENSTOCK_ASSIGN(std::optional<Choice> choice,
                    PlanChoice(given, {smallest, given.sequence, ranks}, planning));
    if (!choice) continue;
    choices.push_back(*std::move(choice));
    break;
  }
  return choices;
}

}  // namespace penstock::train
