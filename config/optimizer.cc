// The optimizer and scheduler sections.
#include <algorithm>
#include <cctype>

#include "config/sections.h"

namespace penstock::config {
namespace {

using nlohmann::json;

constexpr NumberRange kRatio = {0, 1};
constexpr double kLargestMoment = 3e38;  // finite in fp32 and in bf16
constexpr IntegerRange kSteps = {0, int64_t{1} << 53};

template <typename Hyperparameters>
void ReadBetas(JsonSection& params, Hyperparameters& hyper) {
  const json* betas = params.Find("betas");
  if (betas == nullptr || params.TakeAuto("betas", *betas)) return;
  const auto is_beta = [](const json& beta) {
    return beta.is_number() && beta.get<double>() >= 0 && beta.get<double>() < 1;
  };
  if (!betas->is_array() || betas->size() != 2 || !is_beta(betas->at(0)) ||
      !is_beta(betas->at(1))) {
    params.Fail("betas", fmt::format("expected two numbers in [0, 1), got {}", Show(*betas)));
    return;
  }
  hyper.beta1 = betas->at(0).get<double>();
  hyper.beta2 = betas->at(1).get<double>();
}

/// `decoupled`: the type is AdamW. "Adam" is AdamW, too, unless adam_w_mode is false.
kernels::AdamHyperparameters ReadAdam(JsonSection& params, bool decoupled) {
  kernels::AdamHyperparameters adam;
  ReadBetas(params, adam);
  adam.eps = params.Number("eps", adam.eps);
  adam.weight_decay = params.Number("weight_decay", 0);
  adam.bias_correction = params.Bool("bias_correction", true);
  adam.adam_w_mode = params.Bool("adam_w_mode", true);
  if (decoupled && !adam.adam_w_mode) {
    params.Fail("adam_w_mode", "false contradicts optimizer.type AdamW; set the type to \"Adam\"");
  }
  params.Off({{"amsgrad", kBool, "[false]"}});
  params.Superseded({{"torch_adam", kBool}});
  return adam;
}

/// DeepSpeed's default of the second beta, not the paper's.
kernels::LionHyperparameters ReadLion(JsonSection& params) {
  kernels::LionHyperparameters lion{.beta2 = 0.999};
  ReadBetas(params, lion);
  lion.weight_decay = params.Number("weight_decay", 0);
  return lion;
}

kernels::AdagradHyperparameters ReadAdagrad(JsonSection& params, OptimizerConfig& optimizer) {
  kernels::AdagradHyperparameters adagrad;
  adagrad.lr_decay = params.Number("lr_decay", 0);
  adagrad.eps = params.Number("eps", adagrad.eps);
  adagrad.weight_decay = params.Number("weight_decay", 0);
  optimizer.initial_accumulator_value =
      params.Number("initial_accumulator_value", 0, {0, kLargestMoment});
  params.Off({{"amsgrad", kBool, "[false]"}});
  return adagrad;
}

/// DeepSpeed's FusedLamb.
kernels::LambHyperparameters ReadLamb(JsonSection& params) {
  kernels::LambHyperparameters lamb;
  ReadBetas(params, lamb);
  lamb.eps = params.Number("eps", lamb.eps);
  lamb.weight_decay = params.Number("weight_decay", 0);
  lamb.bias_correction = params.Bool("bias_correction", true);
  lamb.max_coeff = params.Number("max_coeff", lamb.max_coeff);
  lamb.min_coeff = params.Number("min_coeff", lamb.min_coeff);
  if (lamb.min_coeff > lamb.max_coeff) {
    params.Fail("min_coeff", fmt::format("{} is above max_coeff {}; exchange them", lamb.min_coeff,
                                         lamb.max_coeff));
  }
  params.Off({{"amsgrad", kBool, "[false]"}, {"eps_inside_sqrt", kBool, "[false]"}});
  return lamb;
}

/// Parameters that another type has.
void RefuseOthers(JsonSection& params, std::string_view type,
                  std::initializer_list<std::string_view> others) {
  for (const std::string_view key : others) {
    if (params.Find(key) == nullptr) continue;
    params.Fail(key, fmt::format("{} has no such parameter; remove it", type));
  }
}

/// `moments`: what bf16.bf16_optimizer_states says, which this key may only repeat.
void ReadStatesDType(JsonSection& params, kernels::DType moments) {
  const bool is_fp32 = moments == kernels::DType::kFloat32;
  if (params.Bool("fp32_optimizer_states", is_fp32) == is_fp32) return;
  params.Fail("fp32_optimizer_states",
              is_fp32 ? "false is written as bf16.bf16_optimizer_states true; set that, or remove "
                        "this"
                      : "true contradicts bf16.bf16_optimizer_states; remove one of the two");
}

void ReadParams(JsonSection& params, std::string_view type, OptimizerConfig& optimizer) {
  optimizer.lr = params.Number("lr", type == "adagrad" ? 1e-2 : 1e-3);
  if (type == "lion") {
    optimizer.hyper = ReadLion(params);
    RefuseOthers(params, "Lion",
                 {"eps", "bias_correction", "adam_w_mode", "amsgrad", "torch_adam", "lr_decay",
                  "initial_accumulator_value", "max_coeff", "min_coeff", "eps_inside_sqrt"});
  } else if (type == "adagrad") {
    optimizer.hyper = ReadAdagrad(params, optimizer);
    RefuseOthers(params, "Adagrad",
                 {"betas", "bias_correction", "adam_w_mode", "torch_adam", "max_coeff", "min_coeff",
                  "eps_inside_sqrt"});
  } else if (type == "lamb") {
    optimizer.hyper = ReadLamb(params);
    RefuseOthers(params, "Lamb",
                 {"adam_w_mode", "torch_adam", "lr_decay", "initial_accumulator_value"});
  } else {
    optimizer.hyper = ReadAdam(params, type == "adamw");
    RefuseOthers(
        params, "Adam",
        {"lr_decay", "initial_accumulator_value", "max_coeff", "min_coeff", "eps_inside_sqrt"});
  }
  ReadStatesDType(params, optimizer.moments);
  params.Off({{"max_grad_norm", kNumber | kNull, "[]", "use gradient_clipping at the top level"}});
  params.Superseded({{"set_grad_none", kBool}});
}

void ReadWarmup(JsonSection& params, SchedulerConfig& scheduler) {
  scheduler.warmup_num_steps =
      std::max<int64_t>(2, params.Integer("warmup_num_steps", 1000, kSteps));
  scheduler.warmup_type = params.Choice<WarmupType>(
      "warmup_type", {{"log", WarmupType::kLog}, {"linear", WarmupType::kLinear}},
      WarmupType::kLog);
  params.Off({{"last_batch_iteration", kInteger, "[-1]"}});
}

void ReadTotal(JsonSection& params, ConfigDraft& draft) {
  const std::optional<int64_t> total = params.OptionalInteger("total_num_steps", {1, kSteps.high});
  draft.total_num_steps_given = total.has_value();
  draft.config.scheduler.total_num_steps = total.value_or(0);
}

void ReadSchedulerParams(JsonSection& params, ConfigDraft& draft) {
  SchedulerConfig& scheduler = draft.config.scheduler;
  switch (scheduler.type) {
    case SchedulerType::kNone:
      break;
    case SchedulerType::kWarmupLr:
      scheduler.warmup_min_lr = params.Number("warmup_min_lr", 0);
      scheduler.warmup_max_lr = params.OptionalNumber("warmup_max_lr");
      ReadWarmup(params, scheduler);
      break;
    case SchedulerType::kWarmupDecayLr:
      ReadTotal(params, draft);
      scheduler.warmup_min_lr = params.Number("warmup_min_lr", 0);
      scheduler.warmup_max_lr = params.Number("warmup_max_lr", 1e-3);
      ReadWarmup(params, scheduler);
      break;
    case SchedulerType::kWarmupCosineLr:
      ReadTotal(params, draft);
      scheduler.warmup_min_ratio = params.Number("warmup_min_ratio", 0, kRatio);
      scheduler.cos_min_ratio = params.Number("cos_min_ratio", 1e-4, kRatio);
      ReadWarmup(params, scheduler);
      break;
  }
}

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return text;
}

/// `lower`: the type in lower case.
void CheckType(JsonSection& section, const std::string& type, std::string_view lower) {
  const auto is_one_of = [lower](std::initializer_list<std::string_view> types) {
    return std::ranges::find(types, lower) != types.end();
  };
  if (is_one_of({"adam", "adamw", "lion", "adagrad", "lamb"})) return;
  if (is_one_of({"onebitadam", "zerooneadam", "onebitlamb"})) {
    const std::string_view same = lower == "onebitlamb" ? "Lamb" : "AdamW";
    section.Fail("type", fmt::format("{} is not implemented: it compresses communication, and one "
                                     "rank has nothing to compress; set it to \"{}\", which is "
                                     "the same rule before freeze_step",
                                     Show(type), same));
    return;
  }
  section.Fail("type", fmt::format("{} is not implemented; set it to \"AdamW\", \"Adam\", "
                                   "\"Lion\", \"Adagrad\" or \"Lamb\"",
                                   Show(type)));
}

}  // namespace

void ReadOptimizer(JsonReader& reader, JsonSection& top, ConfigDraft& draft) {
  OptimizerConfig& optimizer = draft.config.optimizer;
  const json* given = top.Find("optimizer");
  const bool missing = given == nullptr || given->is_null();
  if (missing) reader.AddAutomatic("optimizer");
  top.Object("optimizer", [&](JsonSection& section) {
    const json* type = section.Find("type");
    if (!missing && (type == nullptr || type->is_null())) reader.AddAutomatic("optimizer.type");
    optimizer.type = section.OptionalText("type").value_or("AdamW");
    const std::string lower = Lower(optimizer.type);
    CheckType(section, optimizer.type, lower);
    section.Object("params", [&](JsonSection& params) { ReadParams(params, lower, optimizer); });
    section.Superseded({{"legacy_fusion", kBool}});
  });
}

void ReadScheduler(JsonSection& top, ConfigDraft& draft) {
  top.Object("scheduler", [&](JsonSection& section) {
    const std::optional<std::string> type = section.OptionalText("type");
    SchedulerType& parsed = draft.config.scheduler.type;
    if (type == "WarmupLR") {
      parsed = SchedulerType::kWarmupLr;
    } else if (type == "WarmupDecayLR") {
      parsed = SchedulerType::kWarmupDecayLr;
    } else if (type == "WarmupCosineLR") {
      parsed = SchedulerType::kWarmupCosineLr;
    } else if (type) {
      section.Fail("type", fmt::format("{} is not implemented; set it to \"WarmupLR\", "
                                       "\"WarmupDecayLR\" or \"WarmupCosineLR\", or to null",
                                       Show(*type)));
    }
    section.Object("params", [&](JsonSection& params) { ReadSchedulerParams(params, draft); });
  });
}

void CheckScheduler(JsonReader& reader, const ConfigDraft& draft) {
  const SchedulerType type = draft.config.scheduler.type;
  const bool needs_total =
      type == SchedulerType::kWarmupDecayLr || type == SchedulerType::kWarmupCosineLr;
  if (needs_total && !draft.total_num_steps_given) {
    reader.Fail("scheduler.params.total_num_steps",
                "missing, and it has no default; give the number of optimizer steps");
  }
}

}  // namespace penstock::config
