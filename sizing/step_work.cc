#include "sizing/step_work.h"

namespace penstock::train {
namespace {

double AttentionFlops(const CountedSizes& sizes, uint64_t sequence, double tokens) {
  return 12 * static_cast<double>(sizes.attentions) * static_cast<double>(sizes.attention_width) *
         static_cast<double>(sequence) * tokens;
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
  return Together(layers + AttentionFlops(CountedSizesOf(shape), batch.sequence, batch.tokens()),
                  logits);
}

CountedSizes CountedSizesOf(const ModelShape& shape) {
  const ParameterKinds kinds = CountParameters(shape);
  return {.parameters = kinds.total(),
          .outside_layers = kinds.embedding + kinds.positions + kinds.head,
          .attentions = shape.layers + 2 * shape.decoder_layers,
          .attention_width = AttentionWidth(shape)};
}

StepWork MetricsWork(const CountedSizes& sizes, uint64_t sequence, double tokens) {
  const double rest = 6 * tokens * static_cast<double>(sizes.outside_layers);
  const double all = 6 * tokens * static_cast<double>(sizes.parameters);
  return Together(all - rest + AttentionFlops(sizes, sequence, tokens), rest);
}

double EarlierMegatronFlops(const ModelShape& shape, const StepBatch& batch) {
  return 8 * batch.tokens() * static_cast<double>(shape.layers) *
         static_cast<double>(LayerParameters(shape));
}

double TflopsPerGpu(double flops, double seconds, uint64_t gpus) {
  return flops / (seconds * static_cast<double>(gpus)) / 1e12;
}

}  // namespace penstock::train
