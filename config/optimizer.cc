// The optimizer section.
#include <algorithm>
#include <cctype>

#include "config/sections.h"

namespace penstock::config {
namespace {

using nlohmann::json;

constexpr double kMaxMoment = 3e38;  // finite in fp32 and in bf16

template <typename Hyperparameters>
void ReadBetas(JsonSection& params, Hyperparameters& hyper) {
  const json* betas = params.Find("betas");
  if (betas == nullptr || params.TakeAuto("betas", *betas, {hyper.beta1, hyper.beta2})) return;
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
  params.Superseded(Instead::kUpdate, {{"torch_adam", kBool}});
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
      params.Number("initial_accumulator_value", 0, {0, kMaxMoment});
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
    params.Refuse(key, fmt::format("{} has no such parameter; remove it", type));
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
  params.Refuse("max_grad_norm", "it is no parameter here; use gradient_clipping at the top level",
                "gradient_clipping");
  params.Superseded(Instead::kUpdate, {{"set_grad_none", kBool}});
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
  const auto note = [&reader](const char* path, const std::string& value) {
    reader.AddAutomatic({.path = path, .given = false, .value = value, .source = "default"});
  };
  top.Object("optimizer", [&](JsonSection& section) {
    const json* type = section.Find("type");
    if (!missing && (type == nullptr || type->is_null())) note("optimizer.type", "\"AdamW\"");
    const bool is_auto = type != nullptr && section.TakeAuto("type", *type, "AdamW");
    optimizer.type = is_auto ? "AdamW" : section.OptionalText("type").value_or("AdamW");
    const std::string lower = Lower(optimizer.type);
    CheckType(section, optimizer.type, lower);
    section.Object("params", [&](JsonSection& params) { ReadParams(params, lower, optimizer); });
    section.Superseded(Instead::kUpdate, {{"legacy_fusion", kBool}});
  });
  if (missing) note("optimizer", fmt::format("AdamW with lr {}", optimizer.lr));
}

}  // namespace penstock::config
