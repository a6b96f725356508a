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

#include "config/to_json.h"

namespace penstock::train {
namespace {

constexpr uint32_t kMaxTriedRanks = 1024;
/// Times that differ by less count as equal.
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

config::Config WithPlacement(config::Config config, std::pair<Tier, Tier> homes) {
  config.parameter_home = homes.first;
  config.optimizer_home = homes.second;
  // A config has paths only where something lives there.
  if (!config::UsesNvme(config)) config.nvme_paths.clear();
  // State outside the device needs stage 3; one rank computes the same at every stage.
  if (homes.first != Tier::kDevice || homes.second != Tier::kDevice) config.zero_stage = 3;
  return config;
}

config::Config WithMicroBatch(config::Config config, uint64_t micro_batch) {
  config.gradient_accumulation_steps *= config.micro_batch_size / micro_batch;
  config.micro_batch_size = micro_batch;
  return config;
}

/// On so many times the ranks, the same global batch if fewer accumulated micro-batches make it, or
/// else the next larger one that they can.
config::Config OnMoreRanks(config::Config config, uint64_t ranks, uint64_t times) {
  const uint64_t accumulated = config.gradient_accumulation_steps;
  config.gradient_accumulation_steps = (accumulated + times - 1) / times;
  config.train_batch_size = config.micro_batch_size * config.gradient_accumulation_steps * ranks;
  return config;
}

/// A batch that grows must fit its ranks at every size.
bool IsTakenByTrain(const config::Config& config, uint32_t ranks) {
  return config::ParseConfig({{"choice", config::ConfigToJson(config)}}, ranks).ok();
}

/// Says what is other than given, and counts it.
void Describe(const Alternative& given, Choice& choice) {
  const config::Config& now = choice.setup.config;
  const config::Config& before = given.config;
  std::vector<std::string> changes;
  if (now.parameter_home != before.parameter_home || now.optimizer_home != before.optimizer_home) {
    changes.push_back(config::PlacementText(now));
  }
  if (now.micro_batch_size != before.micro_batch_size ||
      now.gradient_accumulation_steps != before.gradient_accumulation_steps) {
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
  if (now.train_batch_size != before.train_batch_size) {
    changes.push_back(fmt::format("train_batch_size {}", now.train_batch_size));
  }
  choice.changed = static_cast<uint32_t>(changes.size());
  choice.changes = fmt::format("{}", fmt::join(changes, ", "));
}

std::vector<config::Config> Configs(const config::Config& given) {
  std::vector<config::Config> configs;
  for (const auto& homes : kPlacements) {
    const config::Config placed = WithPlacement(given, homes);
    if (config::UsesNvme(placed) && placed.nvme_paths.empty()) continue;
    for (uint64_t micro = given.micro_batch_size;; micro /= 2) {
      for (const Tier home : {Tier::kDevice, Tier::kHost}) {
        config::Config config = WithMicroBatch(placed, micro);
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
  for (uint32_t ranks = 2 * given.ranks; ranks <= kMaxTriedRanks; ranks *= 2) {
    config::Config config = OnMoreRanks(smallest, ranks, ranks / given.ranks);
    if (!IsTakenByTrain(config, ranks)) continue;
    PENSTOCK_ASSIGN(std::optional<Choice> choice,
                    PlanChoice(given, {std::move(config), given.sequence, ranks}, planning));
    if (!choice) continue;
    choices.push_back(*std::move(choice));
    break;
  }
  return choices;
}

}  // namespace penstock::train
