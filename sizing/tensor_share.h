// What one GPU holds of an embedding and of a layer if tensor parallelism splits both evenly.
//
// Pure functions. Threads: any.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "base/units.h"
#include "sizing/model_shape.h"

namespace penstock::train {

/// Bytes of a parameter in training in mixed precision without sharding: 2 for the weight, 4 for an
/// fp32 gradient, 12 for the master weight and two moments.
inline constexpr uint64_t kMixedPrecisionBytes = 18;
/// Further bytes where 16-bit gradients are added up in fp32; data parallelism does not share them.
inline constexpr uint64_t kFp32AccumulationBytes = 4;

/// Parameters of one GPU, rounded up.
struct TensorShare {
  uint64_t tensor = 1;     ///< GPUs that share a layer, t
  uint64_t embedding = 0;  ///< v · h / t
  uint64_t layer =
      0;  ///< parameters of a layer / t: also of norms, which each GPU really has whole

  /// Returns the parameters of a GPU with so many layers.
  uint64_t Stage(uint64_t layers, bool with_embedding) const {
    return SaturatingAdd(SaturatingMultiply(layers, layer), with_embedding ? embedding : 0);
  }
};

/// `tensor` is at least 1.
TensorShare ShareOf(const ModelShape& shape, uint64_t tensor);

/// Returns a table of the shares of each of `tensors`, in GB of 10^9 bytes. Ends with a line break.
std::string TensorShareText(const ModelShape& shape, std::span<const uint64_t> tensors,
                            uint64_t bytes = kMixedPrecisionBytes);
/// Returns a list of {"tensor", "embedding_parameters", "layer_parameters", "embedding_bytes",
/// "layer_bytes"}.
nlohmann::json TensorShareJson(const ModelShape& shape, std::span<const uint64_t> tensors,
                               uint64_t bytes = kMixedPrecisionBytes);

}  // namespace penstock::train
