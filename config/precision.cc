// fp16, bf16, data_types and communication_data_type: which element type weights and gradients
// have, and gradients on their way.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "config/sections.h"

namespace penstock::config {
namespace {

/// A scaled gradient is fp32 before it is rounded.
constexpr int64_t kMaxScalePower = 127;
constexpr double kMaxScale = 0x1p127;
constexpr double kMinScale = 0x1p-24;
constexpr int64_t kMaxSteps = 1'000'000'000;

bool IsTrueAt(JsonSection& top, std::string_view section, const char* key) {
  const nlohmann::json* object = top.Find(section);
  return object != nullptr && object->is_object() && object->contains(key) &&
         object->at(key) == nlohmann::json(true);
}

LossScaling ReadLossScaling(JsonSection& fp16) {
  LossScaling scaling;
  scaling.loss_scale = fp16.Number("loss_scale", scaling.loss_scale, {0, kMaxScale});
  scaling.initial_scale_power =
      fp16.Integer("initial_scale_power", scaling.initial_scale_power, {0, kMaxScalePower});
  scaling.loss_scale_window =
      fp16.Integer("loss_scale_window", scaling.loss_scale_window, {1, kMaxSteps});
  scaling.hysteresis = fp16.Integer("hysteresis", scaling.hysteresis, {1, kMaxSteps});
  scaling.consecutive_hysteresis =
      fp16.Bool("consecutive_hysteresis", scaling.consecutive_hysteresis);
  scaling.min_loss_scale =
      fp16.Number("min_loss_scale", scaling.min_loss_scale, {kMinScale, kMaxScale});
  const double initial = std::ldexp(1.0, static_cast<int>(scaling.initial_scale_power));
  if (scaling.loss_scale == 0 && initial < scaling.min_loss_scale) {
    fp16.Fail("min_loss_scale",
              fmt::format("{} is above the initial scale of {} (2^initial_scale_power); lower it, "
                          "or raise initial_scale_power",
                          scaling.min_loss_scale, initial));
  }
  return scaling;
}

void ReadFp16(JsonSection& fp16, Config& config) {
  fp16.Off({{"fp16_master_weights_and_grads", kBool, "[false]"}});
  if (fp16.Bool("enabled", false)) {
    fp16.Superseded(Instead::kPrecision, {{"auto_cast", kBool}, {"fused_mode", kBool}});
    config.dtype = kernels::DType::kFloat16;
    config.loss_scaling = ReadLossScaling(fp16);
    config.check_grad_overflow = true;
    return;
  }
  fp16.Inert({{"auto_cast", kBool},
              {"loss_scale", kNumber},
              {"initial_scale_power", kInteger},
              {"loss_scale_window", kInteger},
              {"hysteresis", kInteger},
              {"consecutive_hysteresis", kBool},
              {"min_loss_scale", kNumber},
              {"fused_mode", kBool}});
}

void ReadBf16(JsonSection& bf16, Config& config) {
  const bool enabled = bf16.Bool("enabled", false);
  const bool check = bf16.Bool("check_grad_overflow", true);
  if (enabled) {
    config.dtype = kernels::DType::kBFloat16;
    config.check_grad_overflow = check;
  }
  bf16.Superseded(Instead::kPrecision, {{"immediate_grad_update", kBool}});
  bf16.Off({{"bf16_master_weights_and_grads", kBool, "[false]"}});
  const bool states = bf16.Bool("bf16_optimizer_states", false);
  if (states && !enabled) {
    bf16.Fail("bf16_optimizer_states", "it needs bf16.enabled; set that to true, or this to false");
  }
  config.optimizer.moments = states ? kernels::DType::kBFloat16 : kernels::DType::kFloat32;
}

kernels::DType ReadCommunication(JsonSection& top, bool with_loss_scale) {
  constexpr const char* kKey = "communication_data_type";
  const std::optional<std::string> dtype = top.OptionalText(kKey);
  if (!dtype || *dtype == "fp32") return kernels::DType::kFloat32;
  if (*dtype == "bf16") return kernels::DType::kBFloat16;
  if (*dtype != "fp16") {
    top.Fail(kKey, Show(*dtype) +
                       " is not a type that gradients are sent in; set it to \"fp32\", "
                       "\"bf16\", \"fp16\" or null");
  } else if (!with_loss_scale) {
    top.Fail(kKey,
             "\"fp16\" needs fp16.enabled, whose loss scale keeps gradients in its range; set it "
             "to \"fp32\", \"bf16\" or null");
  }
  return kernels::DType::kFloat16;
}

/// What DeepSpeed calls a dtype, and null, which means the model's.
std::string_view NamesOf(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kFloat32:
      return R"([null, "fp32", "float32", "float", "torch.float32"])";
    case kernels::DType::kBFloat16:
      return R"([null, "bf16", "bfloat16", "torch.bfloat16"])";
    case kernels::DType::kFloat16:
      return R"([null, "fp16", "float16", "half", "torch.float16"])";
  }
  return "[null]";
}

bool IsFp32(const nlohmann::json& name) {
  const nlohmann::json names = nlohmann::json::parse(NamesOf(kernels::DType::kFloat32));
  return name.is_string() && std::ranges::find(names, name) != names.end();
}

}  // namespace

void ReadPrecision(JsonSection& top, ConfigDraft& draft) {
  // DeepSpeed knows the section under an older name as well; only one of them may be there.
  const bool old_name = top.Find("bfloat16") != nullptr;
  if (old_name && top.Find("bf16") != nullptr) {
    top.Fail("bfloat16", "bf16 is given as well; keep bf16 only");
  }
  const char* bf16 = old_name ? "bfloat16" : "bf16";
  if (IsTrueAt(top, "fp16", "enabled") && IsTrueAt(top, bf16, "enabled")) {
    top.Fail("fp16.enabled", "bf16 is enabled as well; only one can be, set this one to false");
  }
  top.Object("fp16", [&](JsonSection& section) { ReadFp16(section, draft.config); });
  top.Object(bf16, [&](JsonSection& section) { ReadBf16(section, draft.config); });

  draft.config.communication = ReadCommunication(top, draft.config.loss_scaling.has_value());

  // Gradients have the dtype of the model.
  const std::string_view own = NamesOf(draft.config.dtype);
  top.Object("data_types", [&](JsonSection& types) {
    // Accumulation is in fp32 always.
    const nlohmann::json* sums = types.Find("grad_accum_dtype");
    if (sums != nullptr && draft.config.dtype != kernels::DType::kFloat32 && IsFp32(*sums)) {
      types.Superseded(Instead::kAccumulation, {{"grad_accum_dtype", kText}});
    } else {
      types.Off({{"grad_accum_dtype", kText | kNull, own}});
    }
    types.Off({{"param_dtype", kText | kNull, own}, {"buffer_dtype", kText | kNull, own}});
  });
}

}  // namespace penstock::config
