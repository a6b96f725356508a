// The trainer's view of a model: a description, which is made from the config alone and plans
// everything, and the model itself, which computes steps.
//
// Tensors have the names and shapes with which Hugging Face stores them (models/family.h says what
// files may add to the names). Tokens go in, and a mean loss comes out; everything between is the
// model's own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ledger.h"
#include "base/result.h"
#include "base/units.h"
#include "device/device.h"
#include "kernels/dtype.h"
#include "kernels/model/model_operators.h"
#include "train/models/compute_place.h"
#include "zero/session/session.h"

namespace penstock::train {

/// The shape of a step's input.
struct BatchShape {
  uint64_t micro_batch = 1;    ///< sequences in a micro-batch, B
  uint64_t micro_batches = 1;  ///< in a step, at most (gradient accumulation)
  uint64_t sequence = 0;       ///< T
  uint64_t ranks = 1;          ///< each with this many micro-batches in a step
  /// Home of the activation checkpoints: kDevice, or kHost, with only those on the device that are
  /// about to be used.
  Tier checkpoint_home = Tier::kDevice;
};

/// The memory of a model's activations, checkpoints and token buffers; kMaxCount if that does not
/// fit 64 bits.
struct ActivationBytes {
  Bytes device;
  Bytes host;         ///< activation checkpoints
  Bytes bookkeeping;  ///< also on the host: tokens in use, and tables
};

/// The sizes of a model that data, cost formulas and messages need.
struct ModelSizes {
  uint64_t vocabulary = 0;  ///< tokens lie in [0, vocabulary)
  uint64_t positions = 0;   ///< the longest sequence
  uint64_t layers = 0;
  uint64_t width = 0;  ///< of all attention heads of a layer together
};

/// The largest magnitudes of a layer's activations in a step, over all micro-batches of a rank;
/// infinite where one is not finite.
struct LayerMagnitudes {
  float attention = 0;  ///< of the residual stream after attention
  float residual = 0;   ///< and after the layer
};

/// A model that computes. Owns activations, checkpoints and token buffers; borrows device and
/// operators; may be destroyed between two steps only. Threads: all functions are called from the
/// thread that feeds the session's compute stream.
class Model {
 public:
  /// Waits for enqueued work.
  virtual ~Model() = default;

  /// Enqueues forward and backward of one step, reduces every gradient (of the mean loss over all
  /// tokens of the step, times the step's loss scale), and has the loss reported as soon as it is
  /// computed; after a failure, the reported loss is never finite. With several micro-batches, what
  /// each adds to a gradient (fp32) or to the loss (double) is computed first, from zero, and added
  /// in their order. `inputs` and `targets`: [micro_batches, micro_batch, sequence] tokens below
  /// the vocabulary, of the micro-batches with which the step was begun; copied before the function
  /// returns. The numbers are those of a model made for this many. The session's model is the
  /// description's Spec().
  virtual Status ForwardBackward(zero::Step& step, std::span<const int32_t> inputs,
                                 std::span<const int32_t> targets) = 0;
  /// Returns the place in the step of the operators that the model enqueues now.
  virtual ComputePlace place() const = 0;
  /// Returns those of the last ForwardBackward, by layer, once Loss() has returned; empty if the
  /// model does not measure them.
  virtual std::vector<LayerMagnitudes> Magnitudes() { return {}; }
  /// Returns the mean loss of the last ForwardBackward, whose session still lives; blocks until it
  /// is there.
  virtual Result<double> Loss() = 0;
};

/// A model as its config describes it. A value. Threads: any.
class ModelDescription {
 public:
  virtual ~ModelDescription() = default;

  virtual ModelSizes sizes() const = 0;
  /// Returns modules, tensors, groups and the order in which a step uses them.
  virtual zero::ModelSpec Spec() const = 0;
  /// Returns new weights: a function of seed, tensor and element.
  virtual zero::TensorSource Initialization(uint64_t seed) const = 0;
  /// Returns what Create will take.
  virtual ActivationBytes Activations(const BatchShape& shape, kernels::DType dtype) const = 0;
  /// Returns all calls of operators that the model will make.
  virtual kernels::OperatorOptions Operators(const BatchShape& shape, kernels::DType dtype,
                                             int threads) const = 0;
  /// Creates the model. `operators` were made for Operators(shape, dtype). Errors: kBudget;
  /// kOutOfMemory; kInvalidArgument for a sequence longer than sizes().positions; of the device.
  virtual Result<std::unique_ptr<Model>> Create(const BatchShape& shape, kernels::DType dtype,
                                                device::Device& device,
                                                kernels::ModelOperators& operators) const = 0;
  /// Returns a JSON object of everything on which the computed numbers depend. Two models have the
  /// same identity only if a run of the one may resume with the other. So the identity names the
  /// model_type, except for gpt2, because older commits of it do not.
  virtual std::string Identity() const = 0;
};

}  // namespace penstock::train
