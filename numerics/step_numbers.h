// The figures of one step, the input of the detectors. Plain values; how they are measured is not
// the detectors' matter.
//
// An unknown figure is nullopt or an empty list; a non-finite one is infinite or NaN. Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace penstock::train {

struct WatchedTensor {
  std::string name;
  std::optional<uint32_t> layer;  ///< nullopt outside of layers: embeddings, the last norm
  bool matrix = true;             ///< false: a bias or a norm weight
};

/// The names of what is measured of a layer's activations, in the order in which a forward computes
/// them.
struct WatchedLayer {
  std::string attention;  ///< the residual stream behind attention: "h.1 behind attention"
  std::string mlp;        ///< output of the MLP; empty if it is not kept apart
  std::string residual;   ///< the residual stream behind the layer: "h.1"
};

/// What stays the same over a run.
struct RunFacts {
  DType dtype = DType::kFloat32;                 ///< dtype of the weights and activations
  uint64_t vocabulary = 0;                       ///< 0: unknown
  uint64_t warmup_steps = 0;                     ///< warm-up of the learning rate
  std::string rate_key = "optimizer.params.lr";  ///< configuration key of that rate
  bool dynamic_loss_scale = false;               ///< fp16 alone
  uint64_t loss_scale_window = 1000;             ///< window of a dynamic loss scale
  std::vector<WatchedTensor> tensors;            ///< in the order of their first use in a forward
  std::vector<WatchedLayer> layers;
};

/// Figures of a tensor's gradient, unscaled. The statistics of a non-finite gradient are not
/// finite.
struct GradientNumbers {
  uint64_t nonfinite = 0;  ///< number of infinite or NaN elements
  double largest = 0;      ///< magnitude
  double rms = 0;
  /// The share of elements, 0 to 1, that are zero as they are stored, in fp16; and that were zero
  /// for another reason than underflow (rows of an embedding that the step did not use).
  std::optional<double> zeros;
  std::optional<double> zeros_before = {};
};

/// The largest magnitudes of a layer's activations, over all micro-batches.
struct LayerNumbers {
  std::optional<double> attention;
  std::optional<double> mlp;
  std::optional<double> residual;
};

enum class Pass { kForward, kBackward, kUpdate };

/// The first value that was not finite, as computing the step again with every operator checked has
/// found it.
struct FirstNonFinite {
  Pass pass = Pass::kForward;
  std::string tensor;  ///< the operator's output
  std::optional<uint32_t> layer;
  uint64_t micro_batch = 0;
  std::vector<uint64_t> rows;  ///< rows of the data
};

/// What is known when a step has been applied or skipped. Of a row of metrics.jsonl the lists are
/// empty.
struct StepNumbers {
  uint64_t step = 0;  ///< number of the step, from 1
  double loss = 0;
  bool forward_finite = true;  ///< the loss is
  double grad_norm = 0;        ///< unscaled, before clipping
  double loss_scale = 1;       ///< scale that the step used
  bool skipped = false;
  double lr = 0;
  double median_step_s = 0;  ///< median of the steps so far; 0: unknown
  /// How many more steps must be skipped, not counting this one, for the run to end; 0: it ends
  /// with this step; nullopt: not known. The loss scaler and the limit of skipped steps determine
  /// it.
  std::optional<uint64_t> steps_to_stop = {};
  std::vector<uint64_t> rows;                ///< rows of the data
  std::vector<GradientNumbers> gradients;    ///< parallel to RunFacts::tensors, or empty
  std::vector<LayerNumbers> layers;          ///< parallel to RunFacts::layers, or empty
  std::optional<FirstNonFinite> first = {};  ///< set in a step with non-finite values
};

/// Figures of a tensor after a step's update.
struct WeightNumbers {
  double largest = 0;  ///< magnitude of the new weights
  double rms = 0;      ///< rms of the new weights
  double rms_before = 0;
  double update_rms = 0;  ///< rms of new - old
};

/// What is known when the update of a step has ended, which may be after the next step's numbers.
struct UpdateNumbers {
  uint64_t step = 0;
  std::vector<WeightNumbers> weights;  ///< parallel to RunFacts::tensors
};

}  // namespace penstock::train
