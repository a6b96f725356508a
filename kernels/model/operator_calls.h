// The calls of a model's operators, by shape.
//
// A model lists its calls beforehand. They determine the scratch, and matrix products are created
// ahead of them. Each kind of call has a forward and a backward. One entry stands for both, and for
// all calls of these shapes.
#pragma once

#include <compare>
#include <cstdint>
#include <variant>
#include <vector>

#include "kernels/dtype.h"

namespace penstock::kernels {

/// Rows of `width` from two tables, and their gradients.
struct EmbeddingCall {
  DType dtype = DType::kFloat32;
  uint64_t rows = 0;
  uint64_t width = 0;

  auto operator<=>(const EmbeddingCall&) const = default;
};

/// A norm over rows of `width`.
struct LayerNormCall {
  DType dtype = DType::kFloat32;
  uint64_t rows = 0;
  uint64_t width = 0;

  auto operator<=>(const LayerNormCall&) const = default;
};

/// [rows, k] · [k, n] and its two backward products.
struct LinearCall {
  DType dtype = DType::kFloat32;
  uint64_t rows = 0;
  uint64_t k = 0;
  uint64_t n = 0;

  auto operator<=>(const LinearCall&) const = default;
};

/// The map from `width` to `hidden` followed by GELU, and the backward of the map from `hidden` to
/// `width` followed by that of GELU.
struct LinearGeluCall {
  DType dtype = DType::kFloat32;
  uint64_t rows = 0;
  uint64_t width = 0;
  uint64_t hidden = 0;

  auto operator<=>(const LinearGeluCall&) const = default;
};

/// Causal self-attention of `heads` heads over sequences of rows of `width`.
struct AttentionCall {
  DType dtype = DType::kFloat32;
  uint64_t batch = 0;
  uint64_t sequence = 0;
  uint64_t width = 0;
  uint64_t heads = 0;  ///< divides width

  auto operator<=>(const AttentionCall&) const = default;
};

/// Who computes attention in 16 bits on a CUDA device. The bits depend on it.
enum class AttentionKernel {
  kOwn,    ///< kernels of penstock
  kCudnn,  ///< cuDNN, which is then loaded
};

/// Logits of `vocabulary` tokens from rows of `width`, their loss and its gradients.
struct HeadCall {
  DType dtype = DType::kFloat32;
  uint64_t rows = 0;
  uint64_t width = 0;
  uint64_t vocabulary = 0;

  auto operator<=>(const HeadCall&) const = default;
};

using OperatorCall =
    std::variant<EmbeddingCall, LayerNormCall, LinearCall, LinearGeluCall, AttentionCall, HeadCall>;
using OperatorCalls = std::vector<OperatorCall>;

}  // namespace penstock::kernels
