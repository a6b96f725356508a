// Operators that find the first non-finite values.
//
// They stand between a model and the operators that compute. During a search, every tensor that an
// operator has written is checked, in the order of computation, and the first one with a number out
// of range is kept. Otherwise they only forward the calls.
//
// Threads: the one that feeds the stream.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "device/device.h"
#include "kernels/model/model_operators.h"
#include "train/models/compute_place.h"

namespace penstock::train {

class CheckedOperators final : public kernels::ModelOperators {
 public:
  using Stream = device::Stream;
  using TokenView = kernels::TokenView;
  using TensorView = kernels::TensorView;
  using ConstTensorView = kernels::ConstTensorView;

  enum class Operation { kEmbedding, kPositions, kNorm, kLinear, kGelu, kAttention, kHead };
  /// What a tensor is to the operator that wrote it.
  enum class Role { kOutput, kInputGradient, kParameterGradient };

  /// The first number out of range.
  struct Finding {
    uint64_t order = 0;  ///< order of the tensor in the step; the same on all ranks
    ComputePlace place;
    Operation operation = Operation::kEmbedding;
    Role role = Role::kOutput;
    const std::byte* tensor = nullptr;  ///< the operator's weight, or a parameter's gradient
    uint64_t row = 0;  ///< row of the tensor: a token of the micro-batch, or a row of a weight
    uint64_t column = 0;
  };

  /// Returns the device memory of the search.
  static Bytes Need() { return device::kDeviceAlignment; }
  /// `inner` outlives the object. Errors: kBudget.
  static Result<std::unique_ptr<CheckedOperators>> Create(device::Device& device,
                                                          kernels::ModelOperators& inner);

  /// Begins to check tensors. `place` returns the model's place at a call. `gradient_limit`: the
  /// largest allowed magnitude of a weight's gradient, which is fp32 until it is rounded.
  void BeginSearch(Stream& stream, std::function<ComputePlace()> place, float gradient_limit);
  /// Waits for the enqueued work and returns the finding. Errors: of the stream.
  Result<std::optional<Finding>> EndSearch(Stream& stream);

  void EmbeddingForward(Stream& stream, const TokenView& tokens, const ConstTensorView& token_table,
                        const ConstTensorView& position_table, const TensorView& out) override;
  void EmbeddingBackward(Stream& stream, const TokenView& tokens, const ConstTensorView& d_out,
                         bool adds_once, const TensorView& d_token_table,
                         const TensorView& d_position_table) override;
  void LayerNormForward(Stream& stream, const ConstTensorView& x, const ConstTensorView& weight,
                        const ConstTensorView& bias, float eps, const TensorView& out,
                        const TensorView& mean, const TensorView& rstd, float* largest) override;
  void LayerNormBackward(Stream& stream, const ConstTensorView& x, const ConstTensorView& weight,
                         const ConstTensorView& mean, const ConstTensorView& rstd,
                         const ConstTensorView& d_out, bool add_to_d_x, const TensorView& d_x,
                         const TensorView& d_weight, const TensorView& d_bias) override;
  void LinearForward(Stream& stream, const ConstTensorView& x, const ConstTensorView& weight,
                     const ConstTensorView& bias, const ConstTensorView& residual,
                     const TensorView& out) override;
  void LinearBackwardInput(Stream& stream, const ConstTensorView& d_out,
                           const ConstTensorView& weight, const TensorView& d_x) override;
  void LinearBackwardWeight(Stream& stream, const ConstTensorView& x, const ConstTensorView& d_out,
                            const TensorView& d_weight, const TensorView& d_bias) override;
  void AttentionForward(Stream& stream, uint64_t heads, const ConstTensorView& qkv,
                        const TensorView& out) override;
  void AttentionBackward(Stream& stream, uint64_t heads, const ConstTensorView& qkv,
                         const ConstTensorView& out, const ConstTensorView& d_out,
                         const TensorView& d_qkv) override;
  void LinearGeluForward(Stream& stream, const ConstTensorView& x, const ConstTensorView& weight,
                         const ConstTensorView& bias, const TensorView& pre,
                         const TensorView& out) override;
  void LinearGeluBackwardInput(Stream& stream, const ConstTensorView& d_out,
                               const ConstTensorView& weight, const ConstTensorView& pre,
                               const TensorView& d_pre) override;
  void HeadForwardBackward(Stream& stream, const ConstTensorView& x, const ConstTensorView& table,
                           const TokenView& targets, float gradient_scale, double* loss_sum,
                           const TensorView& d_x, const TensorView& d_table) override;
  void FindBeyond(Stream& stream, const ConstTensorView& x, float limit, uint64_t base,
                  uint64_t* first) override;
  std::string arithmetic() const override { return inner_.arithmetic(); }
  Bytes scratch_bytes() const override { return inner_.scratch_bytes() + Need(); }

 private:
  /// A checked tensor.
  struct Looked {
    ComputePlace place;
    Operation operation;
    Role role;
    const std::byte* tensor;
    uint64_t columns;
  };

  CheckedOperators(kernels::ModelOperators& inner, device::DeviceBuffer first,
                   device::HostBuffer host)
      : inner_(inner), first_(std::move(first)), host_(std::move(host)) {}
  bool searching() const { return place_ != nullptr; }
  void Look(device::Stream& stream, Operation operation, Role role, const std::byte* tensor,
            const kernels::ConstTensorView& written);

  kernels::ModelOperators& inner_;
  device::DeviceBuffer first_;  ///< index of the tensor, and of the element in it
  device::HostBuffer host_;
  std::function<ComputePlace()> place_;  ///< none: no search is on
  float gradient_limit_ = 0;
  std::vector<Looked> looked_;
};

/// A tensor that an operator has written, without addresses: the same on all ranks.
struct WrittenTensor {
  bool backward = false;
  zero::ModuleId module{};
  CheckedOperators::Operation operation = CheckedOperators::Operation::kEmbedding;
  CheckedOperators::Role role = CheckedOperators::Role::kOutput;
  std::optional<size_t> parameter;  ///< used by the operator, or whose gradient it is
};
WrittenTensor TensorOf(const CheckedOperators::Finding& finding,
                       const offload::ShardLayout& layout);
/// Returns its name for messages: "h.1.mlp.c_proj" for an output or the gradient of an input,
/// "h.1.mlp.c_proj.weight" for the gradient of a parameter, "h.1 attention" for an operator without
/// parameters.
std::string NameOf(const WrittenTensor& tensor, const offload::ModelLayout& layout);

}  // namespace penstock::train
