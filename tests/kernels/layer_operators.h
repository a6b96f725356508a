// The operators of one layer, whose shapes are said once: tests then name tensors by where they
// lie.
#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "device/device.h"
#include "kernels/model/model_operators.h"

namespace penstock::kernels {

/// A transformer's layer with its embedding and its head.
struct LayerShapes {
  uint64_t batch = 0;
  uint64_t sequence = 0;
  uint64_t width = 0;   ///< C
  uint64_t heads = 0;   ///< divides width
  uint64_t hidden = 0;  ///< inner width of the MLP
  uint64_t vocabulary = 0;
};

inline uint64_t Rows(const LayerShapes& shapes) { return shapes.batch * shapes.sequence; }

/// All calls of such a layer.
inline OperatorCalls LayerCalls(DType dtype, const LayerShapes& shapes) {
  const auto& [batch, sequence, width, heads, hidden, vocabulary] = shapes;
  const uint64_t rows = Rows(shapes);
  return {LinearCall{dtype, rows, width, 3 * width},
          LinearCall{dtype, rows, width, width},
          LinearCall{dtype, rows, width, hidden},
          LinearCall{dtype, rows, hidden, width},
          LinearGeluCall{dtype, rows, width, hidden},
          AttentionCall{dtype, batch, sequence, width, heads},
          HeadCall{dtype, rows, width, vocabulary},
          LayerNormCall{dtype, rows, width},
          EmbeddingCall{dtype, rows, width}};
}

inline OperatorOptions LayerOptions(DType dtype, const LayerShapes& shapes, int threads = 1) {
  return {.calls = LayerCalls(dtype, shapes),
          .weight_unit = std::gcd(shapes.width, shapes.hidden),
          .threads = threads};
}

/// Borrows the operators.
class LayerOperators {
 public:
  LayerOperators(ModelOperators& operators, DType dtype, const LayerShapes& shapes)
      : operators_(operators), dtype_(dtype), shapes_(shapes) {}

  void EmbeddingForward(device::Stream& stream, const int32_t* tokens, const std::byte* token_table,
                        const std::byte* position_table, std::byte* out) {
    operators_.EmbeddingForward(
        stream, Tokens(tokens), View({shapes_.vocabulary, shapes_.width}, token_table),
        View({shapes_.sequence, shapes_.width}, position_table), Row(shapes_.width, out));
  }
  void EmbeddingBackward(device::Stream& stream, const int32_t* tokens, const std::byte* d_out,
                         float* d_token_table, float* d_position_table, bool adds_once = false) {
    operators_.EmbeddingBackward(stream, Tokens(tokens), Row(shapes_.width, d_out), adds_once,
                                 Floats({shapes_.vocabulary, shapes_.width}, d_token_table),
                                 Floats({shapes_.sequence, shapes_.width}, d_position_table));
  }
  void LayerNormForward(device::Stream& stream, const std::byte* x, const std::byte* weight,
                        const std::byte* bias, float eps, std::byte* out, float* mean, float* rstd,
                        float* largest = nullptr) {
    operators_.LayerNormForward(stream, Row(shapes_.width, x), View({shapes_.width}, weight),
                                View({shapes_.width}, bias), eps, Row(shapes_.width, out),
                                Floats({Rows(shapes_)}, mean), Floats({Rows(shapes_)}, rstd),
                                largest);
  }
  void LayerNormBackward(device::Stream& stream, const std::byte* x, const std::byte* weight,
                         const float* mean, const float* rstd, const std::byte* d_out,
                         bool add_to_d_x, std::byte* d_x, float* d_weight, float* d_bias) {
    operators_.LayerNormBackward(stream, Row(shapes_.width, x), View({shapes_.width}, weight),
                                 Floats({Rows(shapes_)}, mean), Floats({Rows(shapes_)}, rstd),
                                 Row(shapes_.width, d_out), add_to_d_x, Row(shapes_.width, d_x),
                                 Floats({shapes_.width}, d_weight),
                                 Floats({shapes_.width}, d_bias));
  }
  void LinearForward(device::Stream& stream, const std::byte* x, const std::byte* weight,
                     const std::byte* bias, const std::byte* residual, uint64_t k, uint64_t n,
                     std::byte* out) {
    operators_.LinearForward(stream, Row(k, x), View({k, n}, weight), View({n}, bias),
                             Row(n, residual), Row(n, out));
  }
  void LinearBackwardInput(device::Stream& stream, const std::byte* d_out, const std::byte* weight,
                           uint64_t k, uint64_t n, std::byte* d_x) {
    operators_.LinearBackwardInput(stream, Row(n, d_out), View({k, n}, weight), Row(k, d_x));
  }
  void LinearBackwardWeight(device::Stream& stream, const std::byte* x, const std::byte* d_out,
                            uint64_t k, uint64_t n, float* d_weight, float* d_bias) {
    operators_.LinearBackwardWeight(stream, Row(k, x), Row(n, d_out), Floats({k, n}, d_weight),
                                    Floats({n}, d_bias));
  }
  void AttentionForward(device::Stream& stream, const std::byte* qkv, std::byte* out) {
    operators_.AttentionForward(stream, shapes_.heads, Row(3 * shapes_.width, qkv),
                                Row(shapes_.width, out));
  }
  void AttentionBackward(device::Stream& stream, const std::byte* qkv, const std::byte* out,
                         const std::byte* d_out, std::byte* d_qkv) {
    operators_.AttentionBackward(stream, shapes_.heads, Row(3 * shapes_.width, qkv),
                                 Row(shapes_.width, out), Row(shapes_.width, d_out),
                                 Row(3 * shapes_.width, d_qkv));
  }
  void LinearGeluForward(device::Stream& stream, const std::byte* x, const std::byte* weight,
                         const std::byte* bias, std::byte* pre, std::byte* out) {
    operators_.LinearGeluForward(
        stream, Row(shapes_.width, x), View({shapes_.width, shapes_.hidden}, weight),
        View({shapes_.hidden}, bias), Row(shapes_.hidden, pre), Row(shapes_.hidden, out));
  }
  void LinearGeluBackwardInput(device::Stream& stream, const std::byte* d_out,
                               const std::byte* weight, const std::byte* pre, std::byte* d_pre) {
    operators_.LinearGeluBackwardInput(stream, Row(shapes_.width, d_out),
                                       View({shapes_.hidden, shapes_.width}, weight),
                                       Row(shapes_.hidden, pre), Row(shapes_.hidden, d_pre));
  }
  void HeadForwardBackward(device::Stream& stream, const std::byte* x, const std::byte* table,
                           const int32_t* targets, float gradient_scale, double* loss_sum,
                           std::byte* d_x, float* d_table) {
    operators_.HeadForwardBackward(
        stream, Row(shapes_.width, x), View({shapes_.vocabulary, shapes_.width}, table),
        Tokens(targets), gradient_scale, loss_sum, Row(shapes_.width, d_x),
        Floats({shapes_.vocabulary, shapes_.width}, d_table));
  }

  std::string arithmetic() const { return operators_.arithmetic(); }

  void FindBeyond(device::Stream& stream, uint64_t n, const std::byte* x, float limit,
                  uint64_t base, uint64_t* first) {
    operators_.FindBeyond(stream, View({n}, x), limit, base, first);
  }

 private:
  TensorView View(const Shape& shape, std::byte* data) const { return {dtype_, shape, data}; }
  ConstTensorView View(const Shape& shape, const std::byte* data) const {
    return {dtype_, shape, data};
  }
  TensorView Row(uint64_t columns, std::byte* data) const {
    return View({shapes_.batch, shapes_.sequence, columns}, data);
  }
  ConstTensorView Row(uint64_t columns, const std::byte* data) const {
    return View({shapes_.batch, shapes_.sequence, columns}, data);
  }
  static TensorView Floats(const Shape& shape, float* data) {
    return {DType::kFloat32, shape, reinterpret_cast<std::byte*>(data)};
  }
  static ConstTensorView Floats(const Shape& shape, const float* data) {
    return {DType::kFloat32, shape, reinterpret_cast<const std::byte*>(data)};
  }
  TokenView Tokens(const int32_t* data) const { return {shapes_.batch, shapes_.sequence, data}; }

  ModelOperators& operators_;
  const DType dtype_;
  const LayerShapes shapes_;
};

}  // namespace penstock::kernels
