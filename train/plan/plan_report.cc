#include "train/plan/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "sizing/quantization.h"
#include "sizing/shape_report.h"

namespace penstock::train {
namespace {

using Json = nlohmann::ordered_json;

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

/// Memory by what it is for, as JSON names it.
using Classes = std::vector<std::pair<std::string, Bytes>>;

Classes DeviceClasses(const RunPlan& plan) {
  const ReservedBytes& reserved = plan.needs.reserved;
  return {{"parameters", plan.device.parameters}, {"optimizer_states", plan.device.states},
          {"gradients", plan.device.gradients},   {"exchanges", plan.device.exchange},
          {"activations", reserved.activations},  {"operator_scratch", reserved.scratch}};
}

Classes HostClasses(const RunPlan& plan) {
  const ReservedBytes& reserved = plan.needs.reserved;
  return {{"parameters", plan.host.parameters},
          {"optimizer_states", plan.host.states},
          {"gradients", plan.host.gradients},
          {"bookkeeping", plan.host.bookkeeping},
          {"activation_checkpoints", reserved.checkpoints},
          {"tokens", reserved.tokens},
          {"connections", reserved.connections}};
}

Json ClassesJson(const Classes& classes) {
  Json json = Json::object();
  for (const auto& [name, size] : classes) json[name] = size.value;
  return json;
}

/// Without those of which nothing is taken.
std::string ClassesText(const Classes& classes) {
  std::string text;
  for (auto [name, size] : classes) {
    if (size == 0_B) continue;
    std::ranges::replace(name, '_', ' ');
    text += fmt::format("{}{} {}", text.empty() ? "" : " + ", name, ToString(size));
  }
  return text;
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

std::string LimitText(const std::optional<Bytes>& limit) {
  return limit ? " of " + ToString(*limit) : std::string();
}

std::string SecondsText(const std::optional<double>& seconds) {
  return seconds ? fmt::format("{:.3g} s", *seconds) : "not known";
}

std::string CommitText(const CommitEstimate& commit) {
  std::string text = ToString(commit.bytes) + " written beside the steps";
  if (commit.seconds) text += fmt::format(" in {:.3g} s", *commit.seconds);
  if (commit.steps_apart) text += fmt::format(", every {:.0f} steps", *commit.steps_apart);
  if (commit.wait_s > 0.0) text += fmt::format("; {:.3g} s more a step", *commit.wait_s);
  return text;
}

std::string VerificationText(const CommitEstimate& commit) {
  if (!commit.verification.on) {
    return commit.verification.notice.empty() ? "off" : commit.verification.notice;
  }
  std::string text = ToString(commit.verified) + " read back by each commit";
  if (commit.verify_s) text += fmt::format(" in {:.3g} s", *commit.verify_s);
  if (const std::optional<double> a_step = commit.verified_a_step()) {
    text += fmt::format(", {} a step", ToString(Bytes{static_cast<uint64_t>(*a_step)}));
    if (commit.verify_s)
      text += fmt::format(" in {:.3g} s", *commit.verify_s / *commit.steps_apart);
  }
  return text;
}

class Table {
 public:
  void Line(const std::string& name, const std::string& value) {
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
  const PlanRates rates = RatesOf(plan, setup.config, setup.questions);
  table.Line("step", fmt::format("{:.3g} s (floor {:.3g} s), bound by {}{}", *step.step_s,
                                 *step.floor_s, step.bound_by,
                                 plan.fits() ? "" : ", on a machine with what is missing here"));
  table.Line("tokens a second",
             fmt::format("{:.0f}, {:.3g} TFLOP/s, {:.3g} with recomputation", *rates.tokens_per_s,
                         *rates.tflops, *rates.hardware_tflops));
  if (rates.wear) {
    table.Line("drive", DriveWearText(*rates.wear, setup.questions.rating));
  }
  if (rates.hidden_tokens && step.write_bytes > 0) {
    table.Line("drive is hidden", fmt::format("from {:.0f} tokens a step; here {}",
                                              *rates.hidden_tokens, plan.tokens));
  }
  if (rates.ramp) table.Line("batch ramp-up", RampTimeText(*rates.ramp));
  if (rates.training) table.Line("training", TrainingTimeText(*rates.training));
}

std::string ShortageText(const Shortage& shortage) {
  const std::string what = shortage.tier + (shortage.tier == "drive" ? " space" : " memory");
  return fmt::format("{}: {} = {} bytes, and there are {}; {} bytes are missing", what,
                     shortage.sum, shortage.needed.value, shortage.limit.value,
                     (shortage.needed - shortage.limit).value);
}

/// What a step moves and how long it takes; if the training does not fit, where it just does.
void AddStep(const RunPlan& plan, Json& json) {
  const StepEstimate step = plan.step.value_or(StepEstimate());
  const auto known = [&plan](auto value) { return plan.step ? Json(value) : Json(nullptr); };
  json["nvme_read_bytes_per_step"] = known(step.read_bytes);
  json["nvme_write_bytes_per_step"] = known(step.write_bytes);
  json["to_device_bytes_per_step"] = known(step.to_device_bytes);
  json["to_host_bytes_per_step"] = known(step.to_host_bytes);
  json["link_bytes_per_step"] = known(step.link_bytes);
  json["commit_bytes"] = plan.commit.bytes.value;
  json["commit_s"] = OrNull(plan.commit.seconds);
  json["steps_per_commit"] = OrNull(plan.commit.steps_apart);
  json["verify_commits"] = plan.commit.verification.on;
  json["verify_bytes"] = plan.commit.verified.value;
  json["verify_s"] = OrNull(plan.commit.verify_s);
  json["verify_bytes_per_step"] = OrNull(plan.commit.verified_a_step());
  json["commit_wait_s_per_step"] = OrNull(plan.commit.wait_s);
  json["tokens_per_step"] = plan.tokens;
  json["floors"] = {{"compute_s", OrNull(step.floors.compute)},
                    {"drive_s", OrNull(step.floors.drive)},
                    {"optimizer_s", OrNull(step.floors.update)},
                    {"copies_s", OrNull(step.floors.copies)},
                    {"link_s", OrNull(step.floors.link)}};
  json["floor_s"] = OrNull(step.floor_s);
  json["step_s"] = OrNull(step.step_s);
  json["bound_by"] = step.bound_by.empty() ? Json(nullptr) : Json(step.bound_by);
}

void AddRates(const PlanRates& rates, const PlanQuestions& questions, Json& json) {
  json["tokens_per_s"] = OrNull(rates.tokens_per_s);
  json["tflops"] = OrNull(rates.tflops);
  json["hardware_tflops"] = OrNull(rates.hardware_tflops);
  json["hidden_tokens_per_step"] = OrNull(rates.hidden_tokens);
  json["drive_wear"] =
      rates.wear ? Json(DriveWearJson(*rates.wear, questions.rating)) : Json(nullptr);
  json["training"] = rates.training ? Json(TrainingTimeJson(*rates.training)) : Json(nullptr);
  json["rampup"] = rates.ramp ? Json(RampTimeJson(*rates.ramp)) : Json(nullptr);
}

/// Sizes that a GPU is slow with; a CPU has other ones.
std::vector<std::string> HintsOf(const PlannedSetup& setup) {
  if (!setup.shape || setup.device != "cuda") return {};
  return QuantizationHints(*setup.shape, /*tensor=*/1);
}

void AddMemory(const RunPlan& plan, Table& table) {
  const auto least = [&plan](const char* tier) {
    const bool short_of =
        std::ranges::find(plan.shortages, tier, &Shortage::tier) != plan.shortages.end();
    return short_of ? "least " : "";
  };
  table.Line(fmt::format("{}device memory", least("device")),
             fmt::format("{}{}: {}", ToString(plan.device_peak()), LimitText(plan.limits.device),
                         ClassesText(DeviceClasses(plan))));
  table.Line(fmt::format("{}host memory", least("host")),
             fmt::format("{}{}: {}", ToString(plan.host_peak()), LimitText(plan.limits.host),
                         ClassesText(HostClasses(plan))));
  table.Line("state files", ToString(plan.state_files) + LimitText(plan.limits.drive));
  if (plan.commit.bytes > 0_B) table.Line("a commit", CommitText(plan.commit));
  table.Line("verification", VerificationText(plan.commit));
}

void AddNotes(const PlannedSetup& setup, const RunPlan& plan, Table& table) {
  if (!plan.needs.reserved.scratch_is_known) {
    table.Line("note",
               "operator scratch is not in the device's memory: this build does not have "
               "that device's operators");
  }
  if (setup.stands_in) {
    table.Line("note",
               "this model is not trained yet: activations and operators are those of a "
               "GPT-2 of this shape");
  }
  for (const std::string& hint : HintsOf(setup)) table.Line("note", hint);
}

}  // namespace

nlohmann::ordered_json ToJson(const PlannedSetup& setup, const RunPlan& plan) {
  Json json;
  json["model"] = setup.model;
  json["parameters"] = plan.cost.parameters;
  json["parameters_by_kind"] =
      setup.shape ? Json(KindsJson(CountParameters(*setup.shape))) : Json(nullptr);
  json["model_state_bytes"] = 16 * plan.cost.parameters;
  json["fits"] = plan.fits();
  json["shortages"] = ShortagesJson(plan);
  json["placement"] = config::PlacementText(setup.config);
  json["device"] = setup.device;
  json["world_size"] = setup.questions.ranks;
  json["device_bytes"] = plan.device_peak().value;
  json["host_bytes"] = plan.host_peak().value;
  json["device_classes"] = ClassesJson(DeviceClasses(plan));
  json["host_classes"] = ClassesJson(HostClasses(plan));
  json["nvme_file_bytes"] = plan.state_files.value;
  AddStep(plan, json);
  AddRates(RatesOf(plan, setup.config, setup.questions), setup.questions, json);
  json["hints"] = HintsOf(setup);
  json["speeds"] = setup.speeds;
  return json;
}

std::string ToText(const PlannedSetup& setup, const RunPlan& plan) {
  Table table;
  table.Line("model",
             fmt::format("{}: {} parameters, {} of states (16 bytes a parameter)", setup.model,
                         plan.cost.parameters, ToString(Bytes{16 * plan.cost.parameters})));
  if (setup.shape) table.Line("parameters", KindsText(CountParameters(*setup.shape)));
  const uint32_t ranks = setup.questions.ranks;
  table.Line(
      "setup",
      fmt::format("{}, {}, {} x {} x {} tokens a step on {} rank{}",
                  config::PlacementText(setup.config), penstock::ToString(setup.config.dtype),
                  setup.config.micro_batch_size, setup.config.gradient_accumulation_steps,
                  setup.sequence, ranks, ranks == 1 ? "" : "s"));
  AddMemory(plan, table);
  AddTime(plan, setup, table);
  AddNotes(setup, plan, table);
  if (plan.fits()) table.Line("fits", "yes");
  for (const Shortage& shortage : plan.shortages) {
    table.Line("does not fit", ShortageText(shortage));
  }
  return table.Take();
}

}  // namespace penstock::train
