// What zero has to know of GPT-2, and its initial weights.
//
// A step uses the modules in this order (F forward, B backward):
//   wte F, wpe F, h.0 F … h.L-1 F, ln_f F, wte B, h.L-1 B … h.0 B
// The embedding holds wte and wpe together. The head holds ln_f and wte together and computes its
// forward and backward at once, so that the logits never exist whole: its use of wte is the first
// backward one. The embedding's backward needs token ids and gradients but no parameters, so it is
// no use at all. Gradients are complete in the order ln_f, h.L-1 … h.0, wpe, wte.
#include "train/models/gpt2_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "train/models/gpt2.h"

namespace penstock::train {
namespace {

using zero::ModuleSpec;
using zero::TensorSpec;

void AddNorm(ModuleSpec& module, const std::string& name, uint64_t width) {
  module.tensors.push_back({name + ".weight", {width}, offload::kNoDecay});
  module.tensors.push_back({name + ".bias", {width}, offload::kNoDecay});
}

/// Conv1D: y = x · weight + bias, weight [k, n].
void AddLinear(ModuleSpec& module, const std::string& name, uint64_t k, uint64_t n) {
  module.tensors.push_back({name + ".weight", {k, n}, offload::kDecay});
  module.tensors.push_back({name + ".bias", {n}, offload::kNoDecay});
}

/// In the order of LayerPart.
ModuleSpec LayerSpec(const Gpt2Config& config, uint64_t index) {
  const uint64_t width = config.n_embd;
  ModuleSpec module{.name = fmt::format("h.{}", index), .tensors = {}, .repeated = true};
  AddNorm(module, module.name + ".ln_1", width);
  AddLinear(module, module.name + ".attn.c_attn", width, 3 * width);
  AddLinear(module, module.name + ".attn.c_proj", width, width);
  AddNorm(module, module.name + ".ln_2", width);
  AddLinear(module, module.name + ".mlp.c_fc", width, config.hidden());
  AddLinear(module, module.name + ".mlp.c_proj", config.hidden(), width);
  return module;
}

std::vector<zero::ModuleUse> StepUses(const Gpt2Config& config) {
  const Gpt2Modules modules(config);
  std::vector<zero::ModuleUse> uses = {{modules.wte(), false}, {modules.wpe(), false}};
  for (uint64_t i = 0; i < config.n_layer; ++i) uses.push_back({modules.layer(i), false});
  uses.push_back({modules.ln_f(), false});
  uses.push_back({modules.wte(), true});
  for (uint64_t i = config.n_layer; i-- > 0;) uses.push_back({modules.layer(i), true});
  return uses;
}

std::vector<zero::ModuleId> GradientOrder(const Gpt2Config& config) {
  const Gpt2Modules modules(config);
  std::vector<zero::ModuleId> order = {modules.ln_f()};
  for (uint64_t i = config.n_layer; i-- > 0;) order.push_back(modules.layer(i));
  order.push_back(modules.wpe());
  order.push_back(modules.wte());
  return order;
}

/// How one tensor starts: `constant` + `deviation` * its normal deviates of `stream`.
struct TensorStart {
  float constant = 0;
  double deviation = 0;
  uint64_t stream = 0;
  uint64_t elements = 0;
};

TensorStart StartOf(const TensorSpec& tensor, const Gpt2Config& config, uint64_t stream) {
  TensorStart start{.stream = stream, .elements = tensor.elements()};
  if (tensor.group == offload::kDecay) {
    const bool residual = tensor.name.ends_with(".c_proj.weight");
    const double scale = residual ? std::sqrt(2.0 * static_cast<double>(config.n_layer)) : 1.0;
    start.deviation = config.initializer_range / scale;
  } else if (tensor.name.ends_with(".weight")) {
    start.constant = 1;
  }
  return start;
}

void Fill(const TensorStart& start, uint64_t seed, uint64_t begin, std::span<float> values) {
  if (start.deviation == 0) {
    std::ranges::fill(values, start.constant);
    return;
  }
  FillStandardNormal(seed, start.stream, begin, values);
  for (float& value : values) value = static_cast<float>(start.deviation * value);
}

}  // namespace

zero::ModelSpec Gpt2Spec(const Gpt2Config& config) {
  zero::ModelSpec spec;
  spec.modules.push_back(
      {"wte", {{"wte.weight", {config.vocab_size, config.n_embd}, offload::kDecay}}});
  spec.modules.push_back(
      {"wpe", {{"wpe.weight", {config.n_positions, config.n_embd}, offload::kDecay}}});
  for (uint64_t i = 0; i < config.n_layer; ++i) spec.modules.push_back(LayerSpec(config, i));
  spec.modules.push_back({"ln_f", {}});
  AddNorm(spec.modules.back(), "ln_f", config.n_embd);
  spec.step = StepUses(config);
  spec.gradients = GradientOrder(config);
  return spec;
}

zero::TensorSource Gpt2Initialization(const Gpt2Config& config, uint64_t seed) {
  // A tensor's stream is its index in the whole model.
  std::vector<std::vector<TensorStart>> starts;
  uint64_t stream = 0;
  for (const ModuleSpec& module : Gpt2Spec(config).modules) {
    starts.emplace_back();
    for (const TensorSpec& tensor : module.tensors) {
      starts.back().push_back(StartOf(tensor, config, stream++));
    }
  }
  return [starts = std::move(starts), seed](zero::ModuleId module, size_t tensor, uint64_t begin,
                                            std::span<float> values) -> Status {
    const TensorStart& start = starts.at(offload::Index(module)).at(tensor);
    PENSTOCK_CHECK(begin <= start.elements && values.size() <= start.elements - begin);
    Fill(start, seed, begin, values);
    return {};
  };
}

}  // namespace penstock::train
