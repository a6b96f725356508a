// The scheduler section.
#include <algorithm>
#include <cmath>

#include "config/sections.h"

namespace penstock::config {
namespace {

using nlohmann::json;

constexpr NumberRange kRatio = {0, 1};
/// What a beta can be: below 1.
const NumberRange kBeta = {0, std::nextafter(1.0, 0.0)};
constexpr IntegerRange kSteps = {0, int64_t{1} << 53};
constexpr IntegerRange kSomeSteps = {1, kSteps.high};
constexpr NumberRange kAnyNumber = {-std::numeric_limits<double>::max()};

void ReadWarmup(JsonSection& params, SchedulerConfig& scheduler) {
  scheduler.warmup_num_steps =
      std::max<int64_t>(2, params.Integer("warmup_num_steps", 1000, kSteps));
  scheduler.warmup_type = params.Choice<WarmupType>(
      "warmup_type", {{"log", WarmupType::kLog}, {"linear", WarmupType::kLinear}},
      WarmupType::kLog);
}

void ReadTotal(JsonSection& params, ConfigDraft& draft) {
  const char* key = "total_num_steps";
  const json* value = params.Find(key);
  if (value != nullptr && *value == json("auto")) {
    draft.config.scheduler.total_is_last_step = true;
    return;
  }
  const std::optional<int64_t> total = params.OptionalInteger(key, kSomeSteps);
  draft.total_num_steps_given = total.has_value();
  draft.config.scheduler.total_num_steps = total.value_or(0);
}

/// Whether the rate after the warm-up says "auto", which is the optimizer's.
bool MaxRateIsAuto(JsonSection& params, const OptimizerConfig& optimizer) {
  const json* value = params.Find("warmup_max_lr");
  return value != nullptr &&
         params.TakeAuto("warmup_max_lr", *value, optimizer.lr, "the optimizer's lr");
}

void ReadOneCycle(JsonSection& params, ConfigDraft& draft) {
  OneCycle& cycle = draft.config.scheduler.one_cycle;
  const std::optional<double> min_lr = params.OptionalNumber("cycle_min_lr");
  const std::optional<double> max_lr = params.OptionalNumber("cycle_max_lr");
  draft.cycle_min_lr_given = min_lr.has_value();
  draft.cycle_max_lr_given = max_lr.has_value();
  cycle.min_lr = min_lr.value_or(0);
  cycle.max_lr = max_lr.value_or(0);
  cycle.decay_lr_rate = params.Number("decay_lr_rate", 0);
  cycle.first_step_size = params.Integer("cycle_first_step_size", 2000, kSomeSteps);
  cycle.second_step_size = params.OptionalInteger("cycle_second_step_size", kSteps);
  cycle.first_stair_count = params.Integer("cycle_first_stair_count", 0, kSteps);
  cycle.second_stair_count = params.OptionalInteger("cycle_second_stair_count", kSteps);
  cycle.decay_step_size = params.Integer("decay_step_size", 0, kSteps);
  cycle.momentum = params.Bool("cycle_momentum", true);
  cycle.min_mom = params.Number("cycle_min_mom", cycle.min_mom, kBeta);
  cycle.max_mom = params.Number("cycle_max_mom", cycle.max_mom, kBeta);
  cycle.decay_mom_rate = params.Number("decay_mom_rate", 0, kAnyNumber);
}

void ReadRangeTest(JsonSection& params, LrRangeTest& test) {
  test.min_lr = params.Number("lr_range_test_min_lr", test.min_lr);
  test.step_size = params.Integer("lr_range_test_step_size", test.step_size, kSomeSteps);
  test.step_rate = params.Number("lr_range_test_step_rate", test.step_rate);
  test.staircase = params.Bool("lr_range_test_staircase", test.staircase);
}

void ReadParamsOfType(JsonSection& params, ConfigDraft& draft) {
  SchedulerConfig& scheduler = draft.config.scheduler;
  switch (scheduler.type) {
    case SchedulerType::kNone:
      break;
    case SchedulerType::kWarmupLr:
      scheduler.warmup_min_lr = params.Number("warmup_min_lr", 0);
      if (!MaxRateIsAuto(params, draft.config.optimizer)) {
        scheduler.warmup_max_lr = params.OptionalNumber("warmup_max_lr");
      }
      ReadWarmup(params, scheduler);
      break;
    case SchedulerType::kWarmupDecayLr:
      ReadTotal(params, draft);
      scheduler.warmup_min_lr = params.Number("warmup_min_lr", 0);
      scheduler.warmup_max_lr = MaxRateIsAuto(params, draft.config.optimizer)
                                    ? draft.config.optimizer.lr
                                    : params.Number("warmup_max_lr", 1e-3);
      ReadWarmup(params, scheduler);
      break;
    case SchedulerType::kWarmupCosineLr:
      ReadTotal(params, draft);
      scheduler.warmup_min_ratio = params.Number("warmup_min_ratio", 0, kRatio);
      scheduler.cos_min_ratio = params.Number("cos_min_ratio", 1e-4, kRatio);
      ReadWarmup(params, scheduler);
      break;
    case SchedulerType::kOneCycle:
      ReadOneCycle(params, draft);
      break;
    case SchedulerType::kLrRangeTest:
      ReadRangeTest(params, scheduler.range_test);
      break;
  }
  if (scheduler.type != SchedulerType::kNone) {
    params.Off({{"last_batch_iteration", kInteger, "[-1]"}});
  }
}

}  // namespace

std::string_view SchedulerName(SchedulerType type) {
  switch (type) {
    case SchedulerType::kNone:
      break;
    case SchedulerType::kWarmupLr:
      return "WarmupLR";
    case SchedulerType::kWarmupDecayLr:
      return "WarmupDecayLR";
    case SchedulerType::kWarmupCosineLr:
      return "WarmupCosineLR";
    case SchedulerType::kOneCycle:
      return "OneCycle";
    case SchedulerType::kLrRangeTest:
      return "LRRangeTest";
  }
  return "none";
}

void ReadScheduler(JsonSection& top, ConfigDraft& draft) {
  using enum SchedulerType;
  top.Object("scheduler", [&](JsonSection& section) {
    const std::optional<std::string> type = section.OptionalText("type");
    SchedulerType& parsed = draft.config.scheduler.type;
    for (const SchedulerType known :
         {kWarmupLr, kWarmupDecayLr, kWarmupCosineLr, kOneCycle, kLrRangeTest}) {
      if (type == SchedulerName(known)) parsed = known;
    }
    if (type && parsed == kNone) {
      section.Fail("type", fmt::format("{} is not implemented; set it to \"WarmupLR\", "
                                       "\"WarmupDecayLR\", \"WarmupCosineLR\", \"OneCycle\" or "
                                       "\"LRRangeTest\", or to null",
                                       Show(*type)));
    }
    section.Object("params", [&](JsonSection& params) { ReadParamsOfType(params, draft); });
  });
}

void CheckScheduler(JsonReader& reader, const ConfigDraft& draft) {
  using enum SchedulerType;
  const SchedulerType type = draft.config.scheduler.type;
  const bool needs_total = type == kWarmupDecayLr || type == kWarmupCosineLr;
  if (needs_total && !draft.total_num_steps_given && !draft.config.scheduler.total_is_last_step) {
    reader.Fail("scheduler.params.total_num_steps",
                "missing, and it has no default; give the number of optimizer steps, or \"auto\": "
                "the last step of the run");
  }
  if (type != kOneCycle) return;
  const auto need = [&reader](bool given, const char* key, const char* what) {
    if (given) return;
    reader.Fail(key, fmt::format("missing, and it has no default; give the rate at {}", what));
  };
  need(draft.cycle_min_lr_given, "scheduler.params.cycle_min_lr", "the start of the cycle");
  need(draft.cycle_max_lr_given, "scheduler.params.cycle_max_lr", "the middle of the cycle");
}

}  // namespace penstock::config
