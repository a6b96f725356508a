// How many parameters a shape has. Reading one is in model_shape_parse.cc.
//
// The tensors are those of Hugging Face's models of these families, so a count is that of the file.
#include "sizing/model_shape.h"

#include <algorithm>

#include "base/units.h"

namespace penstock::train {
namespace {

/// T5Config.relative_attention_num_buckets: rows of the table of relative biases.
constexpr uint64_t kRelativeBuckets = 32;

uint64_t Times(uint64_t a, uint64_t b) { return SaturatingMultiply(a, b); }
uint64_t Plus(uint64_t a, uint64_t b) { return SaturatingAdd(a, b); }

/// [k, n] with or without a bias for each of n.
uint64_t Matrix(uint64_t k, uint64_t n, bool bias) { return Plus(Times(k, n), bias ? n : 0); }

bool HasBiases(ShapeFamily family) {
  return family == ShapeFamily::kGpt2 || family == ShapeFamily::kBloom;
}

/// LayerNorm has weight and bias, RMSNorm a weight.
uint64_t Norm(const ModelShape& shape) {
  return Times(shape.width, HasBiases(shape.family) ? 2 : 1);
}

/// One attention: queries, keys, values and the projection back. GPT-2 and BLOOM have h columns for
/// each, however many heads those are of.
uint64_t Attention(const ModelShape& shape, bool biases) {
  const uint64_t h = shape.width;
  if (HasBiases(shape.family)) return Plus(Matrix(h, Times(3, h), biases), Matrix(h, h, biases));
  const uint64_t queries = Times(shape.heads, shape.head_width);
  const uint64_t keys = Times(shape.kv_heads, shape.head_width);
  return Plus(Times(2, Matrix(h, queries, false)), Times(2, Matrix(h, keys, false)));
}

uint64_t Mlp(const ModelShape& shape, bool biases) {
  const uint64_t inward = Matrix(shape.width, shape.inner, biases);
  return Plus(Times(shape.gated ? 2 : 1, inward), Matrix(shape.inner, shape.width, biases));
}

/// What all layers have of something of which an attention has `attention` and an MLP has `mlp`. A
/// decoder's layer of T5 also attends to the encoder.
uint64_t OfAllLayers(const ModelShape& shape, uint64_t attention, uint64_t mlp) {
  return Plus(Times(Plus(shape.layers, Times(2, shape.decoder_layers)), attention),
              Times(Plus(shape.layers, shape.decoder_layers), mlp));
}

uint64_t Positions(const ModelShape& shape) {
  if (shape.family == ShapeFamily::kGpt2) return Times(shape.sequence, shape.width);
  // The first layer of each of T5's stacks has a table for all of the stack's.
  if (shape.family == ShapeFamily::kT5) return Times(2 * kRelativeBuckets, shape.heads);
  return 0;
}

/// Norms of the whole model.
uint64_t Norms(const ModelShape& shape) {
  uint64_t count = Plus(Times(2, shape.layers), 1);
  if (shape.family == ShapeFamily::kBloom) count = Plus(count, 1);  // behind the embedding
  if (shape.family == ShapeFamily::kT5) {
    count = Plus(count, Plus(Times(3, shape.decoder_layers), 1));
  }
  return Times(count, Norm(shape));
}

}  // namespace

std::string_view ToString(ShapeFamily family) {
  switch (family) {
    case ShapeFamily::kGpt2:
      return "gpt2";
    case ShapeFamily::kLlama:
      return "llama";
    case ShapeFamily::kT5:
      return "t5";
    case ShapeFamily::kBloom:
      return "bloom";
  }
  return "";
}

uint64_t ParameterKinds::total() const {
  uint64_t sum = 0;
  for (const uint64_t part : {embedding, positions, attention, mlp, norms, head}) {
    sum = SaturatingAdd(sum, part);
  }
  return sum;
}

ParameterKinds CountParameters(const ModelShape& shape) {
  const uint64_t table = Times(shape.vocabulary, shape.width);
  const bool biases = HasBiases(shape.family);
  return {.embedding = table,
          .positions = Positions(shape),
          .attention = OfAllLayers(shape, Attention(shape, biases), 0),
          .mlp = OfAllLayers(shape, 0, Mlp(shape, biases)),
          .norms = Norms(shape),
          .head = shape.head ? table : 0};
}

uint64_t LayerParameters(const ModelShape& shape) {
  const bool biases = HasBiases(shape.family);
  return Plus(Plus(Attention(shape, biases), Mlp(shape, biases)), Times(2, Norm(shape)));
}

uint64_t AllLayerMatrices(const ModelShape& shape) {
  return OfAllLayers(shape, Attention(shape, false), Mlp(shape, false));
}

uint64_t LargestModule(const ModelShape& shape) {
  const bool bias = HasBiases(shape.family);
  const uint64_t queries = bias ? Times(3, shape.width) : Times(shape.heads, shape.head_width);
  return std::max({Times(shape.vocabulary, shape.width), Positions(shape),
                   Matrix(shape.width, queries, bias), Matrix(shape.width, shape.inner, bias),
                   Matrix(shape.inner, shape.width, bias)});
}

uint64_t LargestModule(std::span<const NamedElements> tensors) {
  uint64_t largest = 0;
  uint64_t sum = 0;
  std::string_view module;
  for (const NamedElements& tensor : tensors) {
    const std::string_view owner = tensor.name.substr(0, tensor.name.rfind('.'));
    if (owner != module) sum = 0;
    module = owner;
    sum = SaturatingAdd(sum, tensor.elements);
    largest = std::max(largest, sum);
  }
  return largest;
}

uint64_t WidthToDepth(const ModelShape& shape) { return shape.width / shape.layers; }

}  // namespace penstock::train
