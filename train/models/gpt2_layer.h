// One transformer layer, forward and backward, as work on a stream. Private to train/models.
#pragma once

#include <span>

#include "device/device.h"
#include "kernels/model/model_operators.h"
#include "offload/layout.h"
#include "train/models/gpt2_buffers.h"
#include "train/models/gpt2_config.h"
#include "train/models/gpt2_spec.h"

namespace penstock::train {

/// A module's tensors on the device, while it is acquired. Gradients only if they were requested.
struct ModuleTensors {
  const offload::ShardLayout* layout;
  offload::ModuleId module;
  const std::byte* weights;
  float* gradients = nullptr;

  kernels::ConstTensorView weight(size_t tensor) const {
    const offload::TensorLayout& place = PlaceOf(tensor);
    const offload::Planes& planes = layout->model.group(place.group).planes;
    return {.dtype = static_cast<DType>(planes.weight().encoding),
            .shape = kernels::Shape(std::span<const uint64_t>(place.shape)),
            .data = weights + layout->SlotOffset(module, place.offset).value};
  }
  kernels::TensorView gradient(size_t tensor) const {
    const offload::TensorLayout& place = PlaceOf(tensor);
    return {.dtype = DType::kFloat32,
            .shape = kernels::Shape(std::span<const uint64_t>(place.shape)),
            .data = reinterpret_cast<std::byte*>(gradients + place.offset)};
  }

 private:
  const offload::TensorLayout& PlaceOf(size_t tensor) const {
    return layout->module(module).tensors[tensor];
  }
};

/// x + attention(ln_1(x)), then + mlp(ln_2(·)), for one micro-batch. Borrows operators and
/// workspace. Threads: as the operators.
class Gpt2Layer {
 public:
  Gpt2Layer(const Gpt2Config& config, const BatchShape& shape, DType dtype,
            kernels::ModelOperators& operators, Gpt2Workspace& workspace)
      : dtype_(dtype),
        micro_batch_(shape.micro_batch),
        sequence_(shape.sequence),
        width_(config.n_embd),
        hidden_(config.hidden()),
        heads_(config.n_head),
        epsilon_(static_cast<float>(config.layer_norm_epsilon)),
        operators_(operators),
        workspace_(workspace) {}

  /// A tensor of the residual stream, [B, T, C].
  kernels::TensorView Rows(std::byte* data) const { return Rows(data, width_); }
  kernels::ConstTensorView Rows(const std::byte* data) const {
    return {.dtype = dtype_, .shape = {micro_batch_, sequence_, width_}, .data = data};
  }

  /// out = layer(x); not in place. Raises `largest`[2] to the largest magnitudes of x, and of the
  /// residual stream behind attention.
  void Forward(device::Stream& stream, const ModuleTensors& tensors,
               const kernels::ConstTensorView& x, const kernels::TensorView& out, float* largest);
  /// Computes the layer again from its input x, adds the weights' gradients, and turns `gradient`
  /// from that of the output into that of the input.
  void Backward(device::Stream& stream, const ModuleTensors& tensors,
                const kernels::ConstTensorView& x, const kernels::TensorView& gradient);

  /// workspace.norm = norm(x), with its mean and rstd in the workspace. Raises `largest`, if any,
  /// to the largest magnitude of x.
  void Norm(device::Stream& stream, const ModuleTensors& tensors, size_t part,
            const kernels::ConstTensorView& x, float* largest);
  /// d_x (+)= gradient through the norm whose mean and rstd are in the workspace.
  void NormBackward(device::Stream& stream, const ModuleTensors& tensors, size_t part,
                    const kernels::ConstTensorView& x, const kernels::ConstTensorView& d_out,
                    bool add_to_d_x, const kernels::TensorView& d_x);

 private:
  kernels::TensorView Rows(std::byte* data, uint64_t columns) const {
    return {.dtype = dtype_, .shape = {micro_batch_, sequence_, columns}, .data = data};
  }
  kernels::TensorView Statistics(const device::DeviceBuffer& buffer) const {
    return {.dtype = DType::kFloat32, .shape = {micro_batch_ * sequence_}, .data = buffer.data()};
  }
  // The contents of the workspace; gpt2_layer.cc says when.
  kernels::TensorView norm() const { return Rows(workspace_.norm.data()); }
  kernels::TensorView attention() const { return Rows(workspace_.attention.data()); }
  kernels::TensorView mid() const { return Rows(workspace_.mid.data()); }
  kernels::TensorView qkv() const { return Rows(workspace_.qkv.data(), 3 * width_); }
  kernels::TensorView d_qkv() const { return Rows(workspace_.fc.data(), 3 * width_); }
  kernels::TensorView fc() const { return Rows(workspace_.fc.data(), hidden_); }
  kernels::TensorView gelu() const { return Rows(workspace_.gelu.data(), hidden_); }
  kernels::TensorView mean() const { return Statistics(workspace_.mean); }
  kernels::TensorView rstd() const { return Statistics(workspace_.rstd); }

  void AttentionBlock(device::Stream& stream, const ModuleTensors& tensors,
                      const kernels::ConstTensorView& x, const kernels::TensorView& out,
                      float* largest);
  void MlpHidden(device::Stream& stream, const ModuleTensors& tensors,
                 const kernels::ConstTensorView& x, float* largest);
  void MlpBackward(device::Stream& stream, const ModuleTensors& tensors,
                   const kernels::TensorView& gradient);
  void AttentionBackward(device::Stream& stream, const ModuleTensors& tensors,
                         const kernels::ConstTensorView& x, const kernels::TensorView& gradient);
  void Linear(device::Stream& stream, const ModuleTensors& tensors, LayerPart map,
              const kernels::ConstTensorView& x, const kernels::ConstTensorView& residual,
              const kernels::TensorView& out);
  /// `d_x` may lie where `x` was: x is read first.
  void LinearBackward(device::Stream& stream, const ModuleTensors& tensors, LayerPart map,
                      const kernels::ConstTensorView& x, const kernels::ConstTensorView& d_out,
                      const kernels::TensorView& d_x);
  void WeightBackward(device::Stream& stream, const ModuleTensors& tensors, LayerPart map,
                      const kernels::ConstTensorView& x, const kernels::ConstTensorView& d_out);

  DType dtype_;
  uint64_t micro_batch_;
  uint64_t sequence_;
  uint64_t width_;
  uint64_t hidden_;
  uint64_t heads_;
  float epsilon_;
  kernels::ModelOperators& operators_;
  Gpt2Workspace& workspace_;
};

}  // namespace penstock::train
