// One transformer layer, forward and backward, as work on a stream. Private to train/.
#pragma once

#include "device/device.h"
#include "kernels/model/operators.h"
#include "offload/layout.h"
#include "train/gpt2_buffers.h"
#include "train/gpt2_spec.h"
#include "train/model_config.h"

namespace penstock::train {

/// A module's tensors on the device, while it is acquired. Gradients only where they were asked
/// for.
struct ModuleTensors {
  const offload::ModuleLayout* layout;
  DType dtype;
  const std::byte* weights;
  float* gradients = nullptr;

  const std::byte* weight(size_t tensor) const {
    return weights + (SizeOf(dtype) * layout->tensors[tensor].offset).value;
  }
  float* gradient(size_t tensor) const { return gradients + layout->tensors[tensor].offset; }
};

/// x + attention(ln_1(x)), then + mlp(ln_2(·)), for one micro-batch. Borrows operators and
/// workspace. Threads: as the operators.
class Gpt2Layer {
 public:
  Gpt2Layer(const Gpt2Config& config, kernels::Operators& operators, Gpt2Workspace& workspace)
      : width_(config.n_embd),
        hidden_(config.hidden()),
        epsilon_(static_cast<float>(config.layer_norm_epsilon)),
        operators_(operators),
        workspace_(workspace) {}

  /// out[R, C] = layer(x[R, C]); not in place.
  void Forward(device::Stream& stream, const ModuleTensors& tensors, const std::byte* x,
               std::byte* out);
  /// Computes the layer again from its input x, adds the weights' gradients, and turns `gradient`
  /// [R, C] from that of the output into that of the input.
  void Backward(device::Stream& stream, const ModuleTensors& tensors, const std::byte* x,
                std::byte* gradient);

  /// workspace.norm = norm(x), with its mean and rstd in the workspace.
  void Norm(device::Stream& stream, const ModuleTensors& tensors, size_t part, const std::byte* x);
  /// d_x (+)= gradient through the norm whose mean and rstd are in the workspace.
  void NormBackward(device::Stream& stream, const ModuleTensors& tensors, size_t part,
                    const std::byte* x, const std::byte* d_out, bool add_to_d_x, std::byte* d_x);

 private:
  struct Map {
    LayerPart part;
    uint64_t k;
    uint64_t n;
  };
  Map attention() const { return {kAttention, width_, 3 * width_}; }
  Map attention_projection() const { return {kAttentionProjection, width_, width_}; }
  Map mlp() const { return {kMlp, width_, hidden_}; }
  Map mlp_projection() const { return {kMlpProjection, hidden_, width_}; }

  void AttentionBlock(device::Stream& stream, const ModuleTensors& tensors, const std::byte* x,
                      std::byte* mid);
  void MlpHidden(device::Stream& stream, const ModuleTensors& tensors, const std::byte* mid);
  void MlpBackward(device::Stream& stream, const ModuleTensors& tensors, std::byte* gradient);
  void AttentionBackward(device::Stream& stream, const ModuleTensors& tensors, const std::byte* x,
                         std::byte* gradient);
  void Linear(device::Stream& stream, const ModuleTensors& tensors, const Map& map,
              const std::byte* x, const std::byte* residual, std::byte* out);
  /// `d_x` may lie where `x` was: x is read first.
  void LinearBackward(device::Stream& stream, const ModuleTensors& tensors, const Map& map,
                      const std::byte* x, const std::byte* d_out, std::byte* d_x);
  void WeightBackward(device::Stream& stream, const ModuleTensors& tensors, const Map& map,
                      const std::byte* x, const std::byte* d_out);

  uint64_t width_;
  uint64_t hidden_;
  float epsilon_;
  kernels::Operators& operators_;
  Gpt2Workspace& workspace_;
};

}  // namespace penstock::train
