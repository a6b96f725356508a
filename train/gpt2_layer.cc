// Buffers are used again as soon as what they hold is dead. In the backward of a layer:
//   norm       ln_1(x) | ln_2(mid) | d ln_2(mid) | ln_1(x), computed again | d ln_1(x)
//   qkv        qkv
//   attention  attention's output | its gradient
//   mid        x + attention
//   fc         c_fc's output | d qkv
//   gelu       gelu(fc) | d fc
// Computing the cheap ln_1 twice saves a buffer and its bits are the same.
#include "train/gpt2_layer.h"

namespace penstock::train {

using device::Stream;

void Gpt2Layer::Forward(Stream& stream, const ModuleTensors& tensors, const std::byte* x,
                        std::byte* out) {
  AttentionBlock(stream, tensors, x, out);
  MlpHidden(stream, tensors, out);
  Linear(stream, tensors, mlp_projection(), workspace_.gelu.data(), out, out);
}

void Gpt2Layer::Backward(Stream& stream, const ModuleTensors& tensors, const std::byte* x,
                         std::byte* gradient) {
  AttentionBlock(stream, tensors, x, workspace_.mid.data());
  MlpHidden(stream, tensors, workspace_.mid.data());
  MlpBackward(stream, tensors, gradient);
  AttentionBackward(stream, tensors, x, gradient);
}

/// mid = x + c_proj(attention(c_attn(ln_1(x))))
void Gpt2Layer::AttentionBlock(Stream& stream, const ModuleTensors& tensors, const std::byte* x,
                               std::byte* mid) {
  Norm(stream, tensors, kNorm1, x);
  Linear(stream, tensors, attention(), workspace_.norm.data(), nullptr, workspace_.qkv.data());
  operators_.AttentionForward(stream, workspace_.qkv.data(), workspace_.attention.data());
  Linear(stream, tensors, attention_projection(), workspace_.attention.data(), x, mid);
}

/// gelu = gelu(c_fc(ln_2(mid)))
void Gpt2Layer::MlpHidden(Stream& stream, const ModuleTensors& tensors, const std::byte* mid) {
  Norm(stream, tensors, kNorm2, mid);
  operators_.LinearGeluForward(stream, workspace_.norm.data(), tensors.weight(kMlp),
                               tensors.weight(kMlp + 1), workspace_.fc.data(),
                               workspace_.gelu.data());
}

/// gradient: of the layer's output -> of mid
void Gpt2Layer::MlpBackward(Stream& stream, const ModuleTensors& tensors, std::byte* gradient) {
  std::byte* const norm = workspace_.norm.data();
  std::byte* const gelu = workspace_.gelu.data();
  WeightBackward(stream, tensors, mlp_projection(), gelu, gradient);
  operators_.LinearGeluBackwardInput(stream, gradient, tensors.weight(kMlpProjection),
                                     workspace_.fc.data(), gelu);
  LinearBackward(stream, tensors, mlp(), norm, gelu, norm);
  NormBackward(stream, tensors, kNorm2, workspace_.mid.data(), norm, true, gradient);
}

/// gradient: of mid -> of x
void Gpt2Layer::AttentionBackward(Stream& stream, const ModuleTensors& tensors, const std::byte* x,
                                  std::byte* gradient) {
  std::byte* const norm = workspace_.norm.data();
  std::byte* const out = workspace_.attention.data();
  std::byte* const d_qkv = workspace_.fc.data();
  LinearBackward(stream, tensors, attention_projection(), out, gradient, out);
  operators_.AttentionBackward(stream, workspace_.qkv.data(), out, d_qkv);
  Norm(stream, tensors, kNorm1, x);
  LinearBackward(stream, tensors, attention(), norm, d_qkv, norm);
  NormBackward(stream, tensors, kNorm1, x, norm, true, gradient);
}

void Gpt2Layer::Norm(Stream& stream, const ModuleTensors& tensors, size_t part,
                     const std::byte* x) {
  operators_.LayerNormForward(stream, x, tensors.weight(part), tensors.weight(part + 1), epsilon_,
                              workspace_.norm.data(), workspace_.mean.as<float>(),
                              workspace_.rstd.as<float>());
}

void Gpt2Layer::NormBackward(Stream& stream, const ModuleTensors& tensors, size_t part,
                             const std::byte* x, const std::byte* d_out, bool add_to_d_x,
                             std::byte* d_x) {
  operators_.LayerNormBackward(stream, x, tensors.weight(part), workspace_.mean.as<float>(),
                               workspace_.rstd.as<float>(), d_out, add_to_d_x, d_x,
                               tensors.gradient(part), tensors.gradient(part + 1));
}

void Gpt2Layer::Linear(Stream& stream, const ModuleTensors& tensors, const Map& map,
                       const std::byte* x, const std::byte* residual, std::byte* out) {
  operators_.LinearForward(stream, x, tensors.weight(map.part), tensors.weight(map.part + 1),
                           residual, map.k, map.n, out);
}

void Gpt2Layer::LinearBackward(Stream& stream, const ModuleTensors& tensors, const Map& map,
                               const std::byte* x, const std::byte* d_out, std::byte* d_x) {
  WeightBackward(stream, tensors, map, x, d_out);
  operators_.LinearBackwardInput(stream, d_out, tensors.weight(map.part), map.k, map.n, d_x);
}

void Gpt2Layer::WeightBackward(Stream& stream, const ModuleTensors& tensors, const Map& map,
                               const std::byte* x, const std::byte* d_out) {
  operators_.LinearBackwardWeight(stream, x, d_out, map.k, map.n, tensors.gradient(map.part),
                                  tensors.gradient(map.part + 1));
}

}  // namespace penstock::train
