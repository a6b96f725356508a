// fp16, bf16, data_types and communication_data_type: which element type weights and gradients
// have, and gradients on their way.
#include "config/sections.h"

namespace penstock::config {
namespace {

bool IsTrueAt(JsonSection& top, std::string_view section, const char* key) {
  const nlohmann::json* object = top.Find(section);
  return object != nullptr && object->is_object() && object->contains(key) &&
         object->at(key) == nlohmann::json(true);
}

void ReadFp16(JsonSection& fp16) {
  fp16.Off({{"enabled", kBool, "[false]", "set it to false; bf16.enabled is implemented"},
            {"fp16_master_weights_and_grads", kBool, "[false]"}});
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
  config.dtype = enabled ? kernels::DType::kBFloat16 : kernels::DType::kFloat32;
  config.check_grad_overflow = enabled && check;
  bf16.Superseded({{"immediate_grad_update", kBool}});
  bf16.Off({{"bf16_master_weights_and_grads", kBool, "[false]"}});
  const bool states = bf16.Bool("bf16_optimizer_states", false);
  if (states && !enabled) {
    bf16.Fail("bf16_optimizer_states", "it needs bf16.enabled; set that to true, or this to false");
  }
  config.optimizer.moments = states ? kernels::DType::kBFloat16 : kernels::DType::kFloat32;
}

kernels::DType ReadCommunication(JsonSection& top) {
  constexpr const char* kKey = "communication_data_type";
  const std::optional<std::string> dtype = top.OptionalText(kKey);
  if (!dtype || *dtype == "fp32") return kernels::DType::kFloat32;
  if (*dtype != "bf16") {
    top.Fail(kKey, Show(*dtype) + " is not implemented; set it to \"fp32\", \"bf16\" or null");
  }
  return kernels::DType::kBFloat16;
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
  top.Object("fp16", ReadFp16);
  top.Object(bf16, [&](JsonSection& section) { ReadBf16(section, draft.config); });

  draft.config.communication = ReadCommunication(top);

  // Gradients have the dtype of the model.
  const bool is_bf16 = draft.config.dtype == kernels::DType::kBFloat16;
  const std::string_view own = is_bf16 ? R"([null, "bf16", "bfloat16", "torch.bfloat16"])"
                                       : R"([null, "fp32", "float32", "float", "torch.float32"])";
  top.Object("data_types", [&](JsonSection& types) {
    types.Off({{"grad_accum_dtype", kText | kNull, own},
               {"param_dtype", kText | kNull, own},
               {"buffer_dtype", kText | kNull, own}});
  });
}

}  // namespace penstock::config
