// GPT-2 on the operators and the ZeRO engine: what is computed in a step, module by module.
//
// Modules: "wte" | "wpe" | "h.0" … | "ln_f". The embedding uses wte and wpe, the head ln_f and wte
// (tied). Vertical schedule: each module computes all micro-batches before the next one is
// acquired. Only the input of each layer is kept for backward (a checkpoint of every micro-batch);
// backward computes the layer again. The gradient of the residual stream takes the place of the
// last layer's output and stays there through the whole backward.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ledger.h"
#include "base/result.h"
#include "device/device.h"
#include "kernels/model/model_operators.h"
#include "train/model_config.h"
#include "zero/engine.h"
#include "zero/model.h"

namespace penstock::train {

struct Gpt2Shape {
  uint64_t micro_batch = 1;    ///< sequences in a micro-batch, B
  uint64_t micro_batches = 1;  ///< in a step (gradient accumulation)
  uint64_t sequence = 0;       ///< T
  /// Home of the activation checkpoints: kDevice, or kHost with those of a layer and two more on
  /// the device.
  Tier checkpoint_home = Tier::kDevice;
};

/// What a Gpt2 takes for activations, checkpoints and token buffers; kMostCount where that does not
/// fit.
struct ActivationBytes {
  Bytes device;
  Bytes host;         ///< activation checkpoints
  Bytes bookkeeping;  ///< of the host as well: tokens under way, and what is where
};

/// Modules, tensors (Hugging Face names and shapes; biases and norms without weight decay) and
/// uses.
zero::ModelSpec Gpt2Spec(const Gpt2Config& config);

/// GPT-2's initialisation: normal(0, initializer_range), residual projections (c_proj) scaled by
/// 1/sqrt(2 n_layer), biases 0, norm weights 1. A function of seed, tensor and element.
zero::TensorSource Gpt2Initialization(const Gpt2Config& config, uint64_t seed);

/// What the operators of a Gpt2 must have been made for: all calls that it makes.
kernels::OperatorOptions Gpt2Operators(const Gpt2Config& config, const Gpt2Shape& shape,
                                       kernels::DType dtype, int threads);

/// Owns activations, checkpoints and token buffers; borrows device and operators. Threads: all
/// functions are called from the thread that feeds the engine's compute stream.
class Gpt2 {
 public:
  /// What Create will take.
  static ActivationBytes Memory(const Gpt2Config& config, const Gpt2Shape& shape,
                                kernels::DType dtype);
  /// `operators` were made for Gpt2Operators(config, shape, dtype). Errors: kBudget;
  /// kOutOfMemory; kInvalidArgument for a sequence longer than n_positions; of the device.
  static Result<std::unique_ptr<Gpt2>> Create(const Gpt2Config& config, const Gpt2Shape& shape,
                                              kernels::DType dtype, device::Device& device,
                                              kernels::ModelOperators& operators);
  /// Waits for what was enqueued.
  virtual ~Gpt2() = default;

  /// Enqueues forward and backward of one step and reduces every gradient (of the mean loss over
  /// all tokens of the step). `inputs` and `targets`: [micro_batches, micro_batch, sequence] tokens
  /// below the vocabulary; copied before the function returns. The engine's model is
  /// Gpt2Spec(config).
  virtual Status ForwardBackward(zero::Engine& engine, std::span<const int32_t> inputs,
                                 std::span<const int32_t> targets) = 0;
  /// Mean loss of the last ForwardBackward, whose engine still lives; blocks until it is there.
  virtual Result<double> Loss() = 0;
};

}  // namespace penstock::train
