// How much a step computes, and how fast a machine was at it.
//
// FLOPs are those of matrix products, a multiplication and an addition being two. Pure functions.
// Threads: any.
#pragma once

#include <cstdint>

#include "sizing/model_shape.h"

namespace penstock::train {

/// A step's input: so many samples (sequences) of so many tokens.
struct StepBatch {
  uint64_t samples = 0;   ///< the global batch, B
  uint64_t sequence = 0;  ///< tokens of a sample, s

  double tokens() const { return static_cast<double>(samples) * static_cast<double>(sequence); }
};

/// FLOPs of a step on all devices together.
struct StepWork {
  double model = 0;     ///< forward and backward, each once
  double hardware = 0;  ///< and each layer's forward again, as activation checkpointing does
};

/// Returns what the matrices of a model compute: 6 FLOPs for each element and token, attention's
/// scores and sums (12 · l · width of all heads · s for each token), and 6 · h · v for the logits.
/// A third of the layers' part is computed again with recomputation.
///
/// With i = 4h this is Megatron's formula (Narayanan et al. 2021, section 5.1): hardware = 96 · B ·
/// s · l · h² · (1 + s/(6h) + v/(16 · l · h)), and model has 72 and 12 in place of 96 and 16.
StepWork WorkOf(const ModelShape& shape, const StepBatch& batch);

/// What RUN/metrics.jsonl's count of a model depends on.
struct CountedSizes {
  uint64_t parameters = 0;
  uint64_t outside_layers = 0;  ///< of these: embedding, positions, and a head of its own
  uint64_t attentions = 0;      ///< layers; a decoder's layer of T5 has two
  uint64_t attention_width = 0;
};
CountedSizes CountedSizesOf(const ModelShape& shape);

/// Returns the FLOPs of so many tokens, in samples of `sequence` tokens, as RUN/metrics.jsonl
/// counts them: model = tokens · (6 · N + 12 · l · h · s), where N are all parameters; hardware has
/// a third more of the layers' part of it.
StepWork MetricsWork(const CountedSizes& sizes, uint64_t sequence, double tokens);

/// Returns the formula that Megatron-DeepSpeed had before: 8 · B · s · (parameters of all layers),
/// recomputation included, attention and logits left out.
double EarlierMegatronFlops(const ModelShape& shape, const StepBatch& batch);

/// Returns TFLOP/s (10^12) of each of `gpus`.
double TflopsPerGpu(double flops, double seconds, uint64_t gpus);

/// Returns the width of all heads of one attention together.
uint64_t AttentionWidth(const ModelShape& shape);

}  // namespace penstock::train
