// Buffers are used again as soon as what they hold is dead. In the backward of a layer (forward has
// the first contents of each):
//   norm       ln_1(x) | ln_2(mid) | d ln_2(mid) | d attention | ln_1(x) again | d ln_1(x)
//   qkv        qkv
//   attention  attention's output
//   mid        x + attention
//   fc         c_fc's output | d qkv
//   gelu       gelu(fc) | d fc
// Computing the cheap ln_1 twice saves a buffer and its bits are the same.
#include "train/models/gpt2_layer.h"

namespace penstock::train {

using device::Stream;
using kernels::ConstTensorView;
using kernels::TensorView;

void Gpt2Layer::Forward(Stream& stream, const ModuleTensors& tensors, const ConstTensorView& x,
                        const TensorView& out, float* largest) {
  AttentionBlock(stream, tensors, x, mid(), largest);
  MlpHidden(stream, tensors, mid(), largest + 1);
  Linear(stream, tensors, kMlpProjection, gelu(), mid(), out);
}

void Gpt2Layer::Backward(Stream& stream, const ModuleTensors& tensors, const ConstTensorView& x,
                         const TensorView& gradient) {
  AttentionBlock(stream, tensors, x, mid(), nullptr);
  MlpHidden(stream, tensors, mid(), nullptr);
  MlpBackward(stream, tensors, gradient);
  AttentionBackward(stream, tensors, x, gradient);
}

/// out = x + c_proj(attention(c_attn(ln_1(x))))
void Gpt2Layer::AttentionBlock(Stream& stream, const ModuleTensors& tensors,
                               const ConstTensorView& x, const TensorView& out, float* largest) {
  Norm(stream, tensors, kNorm1, x, largest);
  Linear(stream, tensors, kAttention, norm(), {}, qkv());
  operators_.AttentionForward(stream, heads_, qkv(), attention());
  Linear(stream, tensors, kAttentionProjection, attention(), x, out);
}

/// gelu = gelu(c_fc(ln_2(x)))
void Gpt2Layer::MlpHidden(Stream& stream, const ModuleTensors& tensors, const ConstTensorView& x,
                          float* largest) {
  Norm(stream, tensors, kNorm2, x, largest);
  operators_.LinearGeluForward(stream, norm(), tensors.weight(kMlp), tensors.weight(kMlp + 1), fc(),
                               gelu());
}

/// gradient: of the layer's output -> of mid
void Gpt2Layer::MlpBackward(Stream& stream, const ModuleTensors& tensors,
                            const TensorView& gradient) {
  WeightBackward(stream, tensors, kMlpProjection, gelu(), gradient);
  operators_.LinearGeluBackwardInput(stream, gradient, tensors.weight(kMlpProjection), fc(),
                                     gelu());
  LinearBackward(stream, tensors, kMlp, norm(), gelu(), norm());
  NormBackward(stream, tensors, kNorm2, mid(), norm(), true, gradient);
}

/// gradient: of mid -> of x
void Gpt2Layer::AttentionBackward(Stream& stream, const ModuleTensors& tensors,
                                  const ConstTensorView& x, const TensorView& gradient) {
  LinearBackward(stream, tensors, kAttentionProjection, attention(), gradient, norm());
  operators_.AttentionBackward(stream, heads_, qkv(), attention(), norm(), d_qkv());
  Norm(stream, tensors, kNorm1, x, nullptr);
  LinearBackward(stream, tensors, kAttention, norm(), d_qkv(), norm());
  NormBackward(stream, tensors, kNorm1, x, norm(), true, gradient);
}

void Gpt2Layer::Norm(Stream& stream, const ModuleTensors& tensors, size_t part,
                     const ConstTensorView& x, float* largest) {
  operators_.LayerNormForward(stream, x, tensors.weight(part), tensors.weight(part + 1), epsilon_,
                              norm(), mean(), rstd(), largest);
}

void Gpt2Layer::NormBackward(Stream& stream, const ModuleTensors& tensors, size_t part,
                             const ConstTensorView& x, const ConstTensorView& d_out,
                             bool add_to_d_x, const TensorView& d_x) {
  operators_.LayerNormBackward(stream, x, tensors.weight(part), mean(), rstd(), d_out, add_to_d_x,
                               d_x, tensors.gradient(part), tensors.gradient(part + 1));
}

void Gpt2Layer::Linear(Stream& stream, const ModuleTensors& tensors, LayerPart map,
                       const ConstTensorView& x, const ConstTensorView& residual,
                       const TensorView& out) {
  operators_.LinearForward(stream, x, tensors.weight(map), tensors.weight(map + 1), residual, out);
}

void Gpt2Layer::LinearBackward(Stream& stream, const ModuleTensors& tensors, LayerPart map,
                               const ConstTensorView& x, const ConstTensorView& d_out,
                               const TensorView& d_x) {
  WeightBackward(stream, tensors, map, x, d_out);
  operators_.LinearBackwardInput(stream, d_out, tensors.weight(map), d_x);
}

void Gpt2Layer::WeightBackward(Stream& stream, const ModuleTensors& tensors, LayerPart map,
                               const ConstTensorView& x, const ConstTensorView& d_out) {
  operators_.LinearBackwardWeight(stream, x, d_out, tensors.gradient(map),
                                  tensors.gradient(map + 1));
}

}  // namespace penstock::train
