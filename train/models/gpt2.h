// GPT-2 on the operators and a ZeRO session. Computes a step, module by module.
//
// Modules: "wte" | "wpe" | "h.0" … | "ln_f". The embedding uses wte and wpe, the head ln_f and wte
// (tied). Vertical schedule: each module computes all micro-batches before the next one is
// acquired. Only the input of each layer is kept for backward (a checkpoint of every micro-batch);
// backward computes the layer again. The gradient of the residual stream takes the place of the
// last layer's output and stays there through the whole backward.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "device/device.h"
#include "kernels/model/model_operators.h"
#include "train/models/gpt2_config.h"
#include "train/models/model.h"
#include "zero/model.h"
#include "zero/states/tile_fill.h"

namespace penstock::train {

/// Returns modules, tensors (Hugging Face names and shapes; biases and norms without weight decay)
/// and uses.
zero::ModelSpec Gpt2Spec(const Gpt2Config& config);

/// Returns GPT-2's initialisation: normal(0, initializer_range), residual projections (c_proj)
/// scaled by 1/sqrt(2 n_layer), biases 0, norm weights 1. A function of seed, tensor and element.
zero::TensorSource Gpt2Initialization(const Gpt2Config& config, uint64_t seed);

/// Returns all calls that a Gpt2 makes, for which its operators must be made.
kernels::OperatorOptions Gpt2Operators(const Gpt2Config& config, const BatchShape& shape,
                                       kernels::DType dtype, int threads);

class Gpt2 : public Model {
 public:
  /// Returns what Create will take.
  static ActivationBytes Memory(const Gpt2Config& config, const BatchShape& shape,
                                kernels::DType dtype);
  /// `operators` were made for Gpt2Operators(config, shape, dtype). Errors: kBudget;
  /// kOutOfMemory; kInvalidArgument for a sequence longer than n_positions; of the device.
  static Result<std::unique_ptr<Gpt2>> Create(const Gpt2Config& config, const BatchShape& shape,
                                              kernels::DType dtype, device::Device& device,
                                              kernels::ModelOperators& operators);
};

}  // namespace penstock::train
