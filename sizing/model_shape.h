// Models by name and shape, "gpt2:h=12288,l=96,v=50257,s=2048", and how many parameters they have:
// also those of families that train does not know yet.
//
// Values and pure functions. Sums and products that do not fit 64 bits are kMaxCount; a shape that
// was parsed has none (docs/sizing.md has the keys and the formulas). Threads: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace penstock::train {

enum class ShapeFamily {
  kGpt2,   ///< learned positions, LayerNorm, biases; the head is the embedding
  kLlama,  ///< rotary positions, RMSNorm, gated MLP, no biases, grouped keys and values
  kT5,     ///< encoder and decoder, relative positions, no biases
  kBloom,  ///< GPT-2 with ALiBi in place of positions and a LayerNorm behind the embedding
};

/// "gpt2", "llama", "t5", "bloom".
std::string_view ToString(ShapeFamily family);

/// A model's shape. ParseModelShape says which key gives what.
struct ModelShape {
  ShapeFamily family = ShapeFamily::kGpt2;
  uint64_t width = 0;           ///< h
  uint64_t layers = 0;          ///< l; of T5: of the encoder
  uint64_t decoder_layers = 0;  ///< dl; 0 but for T5
  uint64_t vocabulary = 0;      ///< v
  uint64_t sequence = 0;        ///< s: tokens of a sequence; GPT-2 has a parameter row for each
  uint64_t inner = 0;           ///< i: width of the MLP
  uint64_t heads = 0;           ///< 0: not given
  uint64_t kv_heads = 0;        ///< kv; equals heads but for Llama
  uint64_t head_width = 0;      ///< d; 0 where heads are not given
  bool gated = false;           ///< the MLP has two matrices inward: Llama, T5 v1.1
  bool head = false;            ///< the output matrix is a tensor of its own, not the embedding
};

/// A model's parameters by what they are for.
struct ParameterKinds {
  uint64_t embedding = 0;
  uint64_t positions = 0;  ///< learned ones: GPT-2's table, T5's relative biases
  uint64_t attention = 0;
  uint64_t mlp = 0;
  uint64_t norms = 0;
  uint64_t head = 0;  ///< 0 if the embedding is used

  uint64_t total() const;
};

/// Whether `text` is meant as a name with shape and not as a path: "NAME:KEY=…" without a slash in
/// NAME.
bool IsModelShape(std::string_view text);

/// Reads FAMILY:KEY=N,KEY=N… Keys:
///   h l v        all families; needed
///   s            needed for gpt2; 2048 unless given elsewhere
///   i            needed for llama and t5; 4h unless given for gpt2 and bloom
///   heads        needed for llama and t5; must divide h unless d is given
///   kv           llama: heads of keys and values; as many as heads unless given
///   d            llama, t5: width of a head; h/heads unless given
///   dl           t5: layers of the decoder; as many as l unless given
///   gated        t5: 1 (v1.1, the default) or 0 (the first T5)
///   head         1: an output matrix of its own (llama's default), 0: none (the others')
/// Errors: kInvalidArgument, one line: an unknown family or key (with the nearest that is known), a
/// key that is missing, there twice, without a value or no number, heads that do not divide, more
/// parameters than 64 bits count.
Result<ModelShape> ParseModelShape(const std::string& text);

ParameterKinds CountParameters(const ModelShape& shape);

/// Returns the parameters of one layer; of T5: of the encoder's.
uint64_t LayerParameters(const ModelShape& shape);

/// Returns the elements of the matrices of all layers, which each token is multiplied with.
uint64_t AllLayerMatrices(const ModelShape& shape);

/// Returns the parameters of the largest module that has any of its own, which is one matrix with
/// its bias: DeepSpeed's largest layer. Its estimator does not count those of a module's parts.
uint64_t LargestModule(const ModelShape& shape);

/// Returns int(h / l): how wide a model is for its depth.
uint64_t WidthToDepth(const ModelShape& shape);

/// A tensor as far as the estimator needs it.
struct NamedElements {
  std::string_view name;  ///< "h.0.mlp.c_fc.weight"
  uint64_t elements = 0;
};
/// Returns LargestModule of a model whose tensors are these: those that share a name up to its last
/// dot and are neighbours are one module's own.
uint64_t LargestModule(std::span<const NamedElements> tensors);

}  // namespace penstock::train
