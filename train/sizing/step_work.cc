#include "train/sizing/step_work.h"

namespace penstock::train {
namespace {

/// Attentions of a model: a decoder's layer of T5 has two.
double Attentions(const ModelShape& shape) {
  return static_cast<double>(shape.layers) + 2 * static_cast<double>(shape.decoder_layers);
}

double AttentionFlops(const ModelShape& shape, const StepBatch& batch) {
  return 12 * Attentions(shape) * static_cast<double>(AttentionWidth(shape)) *
         static_cast<double>(batch.sequence) * batch.tokens();
}

/// `layers`, computed once in forward and backward, and `rest`, which is not recomputed.
StepWork Together(double layers, double rest) {
  return {.model = layers + rest, .hardware = layers * 4 / 3 + rest};
}

}  // namespace

uint64_t AttentionWidth(const ModelShape& shape) {
  return shape.head_width == 0 ? shape.width : shape.heads * shape.head_width;
}

StepWork WorkOf(const ModelShape& shape, const StepBatch& batch) {
  const double layers = 6 * static_cast<double>(AllLayerMatrices(shape)) * batch.tokens();
  const double logits =
      6 * static_cast<double>(shape.vocabulary) * static_cast<double>(shape.width) * batch.tokens();
  return Together(layers + AttentionFlops(shape, batch), logits);
}

StepWork MetricsWork(const ModelShape& shape, const StepBatch& batch) {
  const ParameterKinds kinds = CountParameters(shape);
  const auto total = static_cast<double>(kinds.total());
  const double rest =
      6 * batch.tokens() * static_cast<double>(kinds.embedding + kinds.positions + kinds.head);
  return Together(6 * batch.tokens() * total - rest + AttentionFlops(shape, batch), rest);
}

double EarlierMegatronFlops(const ModelShape& shape, const StepBatch& batch) {
  return 8 * batch.tokens() * static_cast<double>(shape.layers) *
         static_cast<double>(LayerParameters(shape));
}

double TflopsPerGpu(double flops, double seconds, uint64_t gpus) {
  return flops / (seconds * static_cast<double>(gpus)) / 1e12;
}

}  // namespace penstock::train
