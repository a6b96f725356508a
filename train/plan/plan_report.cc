#include "train/plan/plan_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "base/dtype.h"

namespace penstock::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kSecondsOfDay = 86400;

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

/// Figures that follow from the time of a step.
struct Rates {
  std::optional<double> tokens_per_s;
  std::optional<double> tflops;
  std::optional<double> written_tb_per_day;
  /// Tokens of a step from which the drive takes no longer than compute.
  std::optional<double> hidden_tokens;
};

Rates RatesOf(const RunPlan& plan) {
  Rates rates;
  if (!plan.step || !plan.step->step_s) return rates;
  const StepEstimate& step = *plan.step;
  const auto tokens = static_cast<double>(plan.tokens);
  rates.tokens_per_s = tokens / *step.step_s;
  rates.tflops = plan.cost.FlopsPerStep(plan.tokens) / *step.step_s / 1e12;
  rates.written_tb_per_day =
      static_cast<double>(step.write_bytes) / *step.step_s * kSecondsOfDay / 1e12;
  if (step.floors.compute > 0.0) {
    rates.hidden_tokens = tokens * *step.floors.drive / *step.floors.compute;
  }
  return rates;
}

Json ShortagesJson(const RunPlan& plan) {
  Json shortages = Json::array();
  for (const Shortage& shortage : plan.shortages) {
    shortages.push_back({{"tier", shortage.tier},
                         {"needed_bytes", shortage.needed.value},
                         {"limit_bytes", shortage.limit.value},
                         {"sum", shortage.sum}});
  }
  return shortages;
}

/// Classes of memory, without those of which nothing is taken.
std::string ClassesText(std::initializer_list<std::pair<const char*, Bytes>> classes) {
  std::string text;
  for (const auto& [name, size] : classes) {
    if (size.value == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : " + ", name, ToString(size));
  }
  return text;
}

std::string LimitText(const std::optional<Bytes>& limit) {
  return limit ? " of " + ToString(*limit) : std::string();
}

std::string SecondsText(const std::optional<double>& seconds) {
  return seconds ? fmt::format("{:.3g} s", *seconds) : "not known";
}

const char* HomeName(Tier tier) {
  return tier == Tier::kDevice ? "the device" : tier == Tier::kHost ? "the host" : "nvme";
}

std::string CommitText(const CommitEstimate& commit) {
  std::string text = ToString(commit.bytes) + " written beside the steps";
  if (commit.seconds) text += fmt::format(" in {:.3g} s", *commit.seconds);
  if (commit.steps_apart) text += fmt::format(", every {:.0f} steps", *commit.steps_apart);
  if (commit.wait_s > 0.0) text += fmt::format("; {:.3g} s more a step", *commit.wait_s);
  return text;
}

class Table {
 public:
  void Line(const char* name, const std::string& value) {
    text_ += fmt::format("{:<22}{}\n", name, value);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

void AddTime(const RunPlan& plan, const PlannedSetup& setup, Table& table) {
  if (!plan.step) return;
  const StepEstimate& step = *plan.step;
  table.Line(
      "moved a step",
      fmt::format(
          "nvme {} read, {} written; to the device {}, back {}{}", ToString(Bytes{step.read_bytes}),
          ToString(Bytes{step.write_bytes}), ToString(Bytes{step.to_device_bytes}),
          ToString(Bytes{step.to_host_bytes}),
          step.link_bytes == 0 ? "" : ", to other ranks " + ToString(Bytes{step.link_bytes})));
  table.Line("busy in a step",
             fmt::format("compute {}, drive {}, optimizer {}, copies {}{}",
                         SecondsText(step.floors.compute), SecondsText(step.floors.drive),
                         SecondsText(step.floors.update), SecondsText(step.floors.copies),
                         step.link_bytes == 0 ? "" : ", link " + SecondsText(step.floors.link)));
  table.Line("speeds", setup.speeds);
  if (!step.step_s) return;
  const Rates rates = RatesOf(plan);
  table.Line("step", fmt::format("{:.3g} s (floor {:.3g} s), bound by {}", *step.step_s,
                                 *step.floor_s, step.bound_by));
  table.Line("tokens a second",
             fmt::format("{:.0f}, {:.3g} TFLOP/s", *rates.tokens_per_s, *rates.tflops));
  if (step.write_bytes == 0) return;
  table.Line("written a day", fmt::format("{:.3g} TB to nvme", *rates.written_tb_per_day));
  if (!rates.hidden_tokens) return;
  table.Line("drive is hidden",
             fmt::format("from {:.0f} tokens a step; here {}", *rates.hidden_tokens, plan.tokens));
}

std::string ShortageText(const Shortage& shortage) {
  const std::string what = shortage.tier + (shortage.tier == "drive" ? " space" : " memory");
  return fmt::format("{}: {} = {} bytes, and there are {}; {} bytes are missing", what,
                     shortage.sum, shortage.needed.value, shortage.limit.value,
                     (shortage.needed - shortage.limit).value);
}

}  // namespace

std::string PlacementText(const config::Config& config) {
  if (config.parameter_home == config.optimizer_home) {
    return fmt::format("everything on {}", HomeName(config.parameter_home));
  }
  return fmt::format("weights on {}, optimizer states on {}", HomeName(config.parameter_home),
                     HomeName(config.optimizer_home));
}

nlohmann::ordered_json ToJson(const PlannedSetup& setup, const RunPlan& plan) {
  const Rates rates = RatesOf(plan);
  const StepEstimate step = plan.step.value_or(StepEstimate());
  const ReservedBytes& reserved = plan.needs.reserved;
  Json json;
  json["model"] = setup.model;
  json["parameters"] = plan.cost.parameters;
  json["model_state_bytes"] = 16 * plan.cost.parameters;
  json["fits"] = plan.fits();
  json["shortages"] = ShortagesJson(plan);
  json["placement"] = PlacementText(setup.config);
  json["device"] = setup.device;
  json["world_size"] = setup.ranks;
  json["device_bytes"] = plan.device_peak().value;
  json["host_bytes"] = plan.host_peak().value;
  json["device_classes"] = {
      {"parameters", plan.device.parameters.value}, {"optimizer_states", plan.device.states.value},
      {"gradients", plan.device.gradients.value},   {"exchanges", plan.device.exchange.value},
      {"activations", reserved.activations.value},  {"operator_scratch", reserved.scratch.value}};
  json["host_classes"] = {{"parameters", plan.host.parameters.value},
                          {"optimizer_states", plan.host.states.value},
                          {"gradients", plan.host.gradients.value},
                          {"bookkeeping", plan.host.bookkeeping.value},
                          {"activation_checkpoints", reserved.checkpoints.value},
                          {"tokens", reserved.tokens.value},
                          {"connections", reserved.connections.value}};
  json["nvme_file_bytes"] = plan.state_files.value;
  // Without a step, which is not planned where the training does not fit, nothing is known of it.
  const auto of_step = [&plan](uint64_t bytes) { return plan.step ? Json(bytes) : Json(nullptr); };
  json["nvme_read_bytes_per_step"] = of_step(step.read_bytes);
  json["nvme_write_bytes_per_step"] = of_step(step.write_bytes);
  json["to_device_bytes_per_step"] = of_step(step.to_device_bytes);
  json["to_host_bytes_per_step"] = of_step(step.to_host_bytes);
  json["link_bytes_per_step"] = of_step(step.link_bytes);
  json["commit_bytes"] = plan.commit.bytes.value;
  json["commit_s"] = OrNull(plan.commit.seconds);
  json["steps_per_commit"] = OrNull(plan.commit.steps_apart);
  json["commit_wait_s_per_step"] = OrNull(plan.commit.wait_s);
  json["tokens_per_step"] = plan.tokens;
  json["floors"] = {{"compute_s", OrNull(step.floors.compute)},
                    {"drive_s", OrNull(step.floors.drive)},
                    {"optimizer_s", plan.step ? Json(step.floors.update) : Json(nullptr)},
                    {"copies_s", OrNull(step.floors.copies)},
                    {"link_s", OrNull(step.floors.link)}};
  json["floor_s"] = OrNull(step.floor_s);
  json["step_s"] = OrNull(step.step_s);
  json["bound_by"] = step.bound_by.empty() ? Json(nullptr) : Json(step.bound_by);
  json["tokens_per_s"] = OrNull(rates.tokens_per_s);
  json["tflops"] = OrNull(rates.tflops);
  json["written_tb_per_day"] = OrNull(rates.written_tb_per_day);
  json["hidden_tokens_per_step"] = OrNull(rates.hidden_tokens);
  json["speeds"] = setup.speeds;
  return json;
}

std::string ToText(const PlannedSetup& setup, const RunPlan& plan) {
  const ReservedBytes& reserved = plan.needs.reserved;
  Table table;
  table.Line("model",
             fmt::format("{}: {} parameters, {} of states (16 bytes a parameter)", setup.model,
                         plan.cost.parameters, ToString(Bytes{16 * plan.cost.parameters})));
  table.Line("setup",
             fmt::format("{}, {}, {} x {} x {} tokens a step on {} rank{}",
                         PlacementText(setup.config), penstock::ToString(setup.config.dtype),
                         setup.config.micro_batch_size, setup.config.gradient_accumulation_steps,
                         setup.sequence, setup.ranks, setup.ranks == 1 ? "" : "s"));
  table.Line(plan.fits() ? "device memory" : "least device memory",
             fmt::format("{}{}: {}", ToString(plan.device_peak()), LimitText(plan.limits.device),
                         ClassesText({{"parameters", plan.device.parameters},
                                      {"optimizer states", plan.device.states},
                                      {"gradients", plan.device.gradients},
                                      {"exchanges", plan.device.exchange},
                                      {"activations", reserved.activations},
                                      {"operator scratch", reserved.scratch}})));
  table.Line(plan.fits() ? "host memory" : "least host memory",
             fmt::format("{}{}: {}", ToString(plan.host_peak()), LimitText(plan.limits.host),
                         ClassesText({{"parameters", plan.host.parameters},
                                      {"optimizer states", plan.host.states},
                                      {"gradients", plan.host.gradients},
                                      {"bookkeeping", plan.host.bookkeeping},
                                      {"activation checkpoints", reserved.checkpoints},
                                      {"tokens", reserved.tokens},
                                      {"connections", reserved.connections}})));
  table.Line("state files", ToString(plan.state_files) + LimitText(plan.limits.drive));
  if (plan.commit.bytes.value > 0) table.Line("a commit", CommitText(plan.commit));
  AddTime(plan, setup, table);
  if (!reserved.scratch_is_known) {
    table.Line("note",
               "operator scratch is not in the device's memory: this build does not have "
               "that device's operators");
  }
  if (setup.stands_in) {
    table.Line("note",
               "this family is not trained yet: activations and operators are those of a "
               "GPT-2 of this shape");
  }
  if (plan.fits()) {
    table.Line("fits", "yes");
  } else {
    for (const Shortage& shortage : plan.shortages) {
      table.Line("does not fit", ShortageText(shortage));
    }
  }
  return table.Take();
}

}  // namespace penstock::train
