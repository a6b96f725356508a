// The positions of GPT-2's modules in the model, and of tensors in their module. Private to
// train/models.
#pragma once

#include <cstddef>
#include <cstdint>

#include "train/models/gpt2_config.h"
#include "zero/model.h"

namespace penstock::train {

/// The modules in the order of Gpt2Spec: wte, wpe, h.0 …, ln_f.
struct Gpt2Modules {
  explicit Gpt2Modules(const Gpt2Config& config) : layers(config.n_layer) {}

  uint64_t layers;
  zero::ModuleId wte() const { return zero::ModuleId{0}; }
  zero::ModuleId wpe() const { return zero::ModuleId{1}; }
  zero::ModuleId layer(uint64_t i) const { return static_cast<zero::ModuleId>(2 + i); }
  zero::ModuleId ln_f() const { return layer(layers); }
};

/// The one tensor of wte and of wpe.
inline constexpr size_t kTable = 0;

/// A norm or a linear map is two tensors, weight and bias one after the other, and is named by the
/// position of its weight.
inline constexpr size_t kFinalNorm = 0;  // ln_f
enum LayerPart : size_t {
  kNorm1 = 0,                // ln_1
  kAttention = 2,            // attn.c_attn
  kAttentionProjection = 4,  // attn.c_proj
  kNorm2 = 6,                // ln_2
  kMlp = 8,                  // mlp.c_fc
  kMlpProjection = 10,       // mlp.c_proj
};

}  // namespace penstock::train
