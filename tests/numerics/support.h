// Runs for the tests of the detectors: a model of three layers, and steps of it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "numerics/report.h"
#include "numerics/step_numbers.h"

namespace penstock::train {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

/// Tensors 0 wte, 1 … 6 c_fc.weight and c_fc.bias of three layers, 7 ln_f.weight.
inline RunFacts ThreeLayers(DType dtype = DType::kFloat16) {
  RunFacts facts{.dtype = dtype, .vocabulary = 256, .dynamic_loss_scale = dtype == DType::kFloat16};
  facts.tensors.push_back({.name = "wte.weight"});
  for (uint32_t layer = 0; layer < 3; ++layer) {
    const std::string name = "h." + std::to_string(layer);
    facts.layers.push_back({name + ".attn.c_proj", name + ".mlp.c_proj", name});
    facts.tensors.push_back({name + ".mlp.c_fc.weight", layer});
    facts.tensors.push_back({name + ".mlp.c_fc.bias", layer, false});
  }
  facts.tensors.push_back({.name = "ln_f.weight", .matrix = false});
  return facts;
}

/// A step in which nothing is wrong.
inline StepNumbers GoodStep(uint64_t step, double loss = 2.3) {
  StepNumbers numbers{.step = step, .loss = loss, .grad_norm = 1, .loss_scale = 65536, .lr = 1e-3};
  numbers.gradients.resize(8, {.largest = 0.1, .rms = 0.01});
  numbers.layers.resize(3, {.attention = 2, .mlp = 3, .residual = 5});
  return numbers;
}

/// A step whose forward is finite and the gradient of `tensor` is not; it was skipped.
inline StepNumbers OverflowIn(uint64_t step, size_t tensor) {
  StepNumbers numbers = GoodStep(step);
  numbers.grad_norm = kInfinity;
  numbers.skipped = true;
  numbers.gradients[tensor] = {.nonfinite = 17, .largest = kInfinity, .rms = kInfinity};
  return numbers;
}

/// A step whose forward is not finite from the output of layer 1's MLP on.
inline StepNumbers BrokenForward(uint64_t step) {
  StepNumbers numbers = OverflowIn(step, 0);
  numbers.loss = kNotANumber;
  numbers.forward_finite = false;
  numbers.layers[1].mlp = numbers.layers[1].residual = kInfinity;
  numbers.layers[2] = {kNotANumber, kNotANumber, kNotANumber};
  return numbers;
}

/// An update of 1e-3 of weights of rms 0.02; those of biases begin at zero.
inline UpdateNumbers GoodUpdate(uint64_t step) {
  UpdateNumbers numbers{.step = step};
  numbers.weights.resize(8, {.largest = 0.1, .rms = 0.02, .rms_before = 0.02, .update_rms = 1e-3});
  return numbers;
}

inline bool Says(const Report& report, const std::string& part) {
  return report.message.find(part) != std::string::npos;
}

/// The rules of a dynamic loss scale, as DeepSpeed's (docs/config.md: fp16).
struct ScalerRules {
  double scale;
  uint64_t hysteresis;
  double least = 1;
  uint64_t window = 1000;
  uint64_t left = hysteresis;  ///< of the hysteresis
  int64_t it = 0;
  int64_t last = -1;

  /// Returns false if the run ends with this step.
  bool Step(bool overflow) {
    if (overflow && left == 1 && scale == least) return false;
    if (overflow) {
      if (left == 1) scale = std::max(scale / 2, least);
      left = std::max<uint64_t>(left - 1, 1);
      last = it;
    } else if ((it - last) % static_cast<int64_t>(window) == 0) {
      scale *= 2;
      left = hysteresis;
    }
    ++it;
    return true;
  }
  /// How many more skipped steps end the run.
  uint64_t StepsToStop() const {
    return left - 1 + static_cast<uint64_t>(std::log2(scale / least)) + 1;
  }
};

}  // namespace penstock::train
