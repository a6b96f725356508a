#include "train/models/checked_operators.h"

#include <limits>
#include <utility>

namespace penstock::train {

using device::Stream;
using kernels::ConstTensorView;
using kernels::TensorView;
using kernels::TokenView;

namespace {

/// A finding is one number: that of the tensor, and below it that of the element.
constexpr int kElementBits = 40;
constexpr uint64_t kElements = uint64_t{1} << kElementBits;
constexpr uint64_t kNothing = std::numeric_limits<uint64_t>::max();

const char* ToText(CheckedOperators::Operation operation) {
  using Operation = CheckedOperators::Operation;
  switch (operation) {
    case Operation::kEmbedding:
      return "embedding";
    case Operation::kPositions:
      return "positions";
    case Operation::kNorm:
      return "norm";
    case Operation::kLinear:
      return "linear";
    case Operation::kGelu:
      return "gelu";
    case Operation::kAttention:
      return "attention";
    case Operation::kHead:
      return "head";
  }
  return "?";
}

/// Where a tensor of the module begins: its gradient, or the tensor itself.
const std::byte* AddressOf(const offload::ShardLayout& layout, const ComputePlace& place,
                           const offload::TensorLayout& tensor, bool gradient) {
  if (gradient) return reinterpret_cast<const std::byte*>(place.gradients + tensor.offset);
  return place.weights + layout.SlotOffset(place.module, tensor.offset).value;
}

}  // namespace

Result<std::unique_ptr<CheckedOperators>> CheckedOperators::Create(device::Device& device,
                                                                   kernels::ModelOperators& inner) {
  PENSTOCK_ASSIGN(device::DeviceBuffer first,
                  device.Allocate(Need(), "the search for numbers that are not finite"));
  PENSTOCK_ASSIGN(device::HostBuffer host, device.AllocateHost(Bytes{sizeof(uint64_t)}));
  return std::unique_ptr<CheckedOperators>(
      new CheckedOperators(inner, std::move(first), std::move(host)));
}

void CheckedOperators::BeginSearch(Stream& stream, std::function<ComputePlace()> place,
                                   float gradient_limit) {
  place_ = std::move(place);
  gradient_limit_ = gradient_limit;
  looked_.clear();
  *host_.as<uint64_t>() = kNothing;
  stream.CopyToDevice(first_.data(), host_.data(), Bytes{sizeof(uint64_t)});
}

Result<std::optional<CheckedOperators::Finding>> CheckedOperators::EndSearch(Stream& stream) {
  place_ = nullptr;
  stream.CopyToHost(host_.data(), first_.data(), Bytes{sizeof(uint64_t)});
  PENSTOCK_TRY(stream.Synchronize());
  const uint64_t first = *host_.as<uint64_t>();
  if (first == kNothing) return std::optional<Finding>();
  const Looked& found = looked_[first >> kElementBits];
  const uint64_t element = first % kElements;
  return std::optional(Finding{.order = first >> kElementBits,
                               .place = found.place,
                               .operation = found.operation,
                               .role = found.role,
                               .tensor = found.tensor,
                               .row = element / found.columns,
                               .column = element % found.columns});
}

void CheckedOperators::Look(Stream& stream, Operation operation, Role role, const std::byte* tensor,
                            const ConstTensorView& written) {
  if (!searching() || written.data == nullptr) return;
  inner_.FindBeyond(
      stream, written,
      role == Role::kParameterGradient ? gradient_limit_ : std::numeric_limits<float>::max(),
      looked_.size() << kElementBits, first_.as<uint64_t>());
  looked_.push_back({.place = place_(),
                     .operation = operation,
                     .role = role,
                     .tensor = tensor,
                     .columns = written.shape.columns()});
}

void CheckedOperators::EmbeddingForward(Stream& stream, const TokenView& tokens,
                                        const ConstTensorView& token_table,
                                        const ConstTensorView& position_table,
                                        const TensorView& out) {
  inner_.EmbeddingForward(stream, tokens, token_table, position_table, out);
  Look(stream, Operation::kEmbedding, Role::kOutput, token_table.data, out);
}

void CheckedOperators::EmbeddingBackward(Stream& stream, const TokenView& tokens,
                                         const ConstTensorView& d_out, bool adds_once,
                                         const TensorView& d_token_table,
                                         const TensorView& d_position_table) {
  inner_.EmbeddingBackward(stream, tokens, d_out, adds_once, d_token_table, d_position_table);
  Look(stream, Operation::kEmbedding, Role::kParameterGradient, d_token_table.data, d_token_table);
  Look(stream, Operation::kPositions, Role::kParameterGradient, d_position_table.data,
       d_position_table);
}

void CheckedOperators::LayerNormForward(Stream& stream, const ConstTensorView& x,
                                        const ConstTensorView& weight, const ConstTensorView& bias,
                                        float eps, const TensorView& out, const TensorView& mean,
                                        const TensorView& rstd, float* largest) {
  inner_.LayerNormForward(stream, x, weight, bias, eps, out, mean, rstd, largest);
  Look(stream, Operation::kNorm, Role::kOutput, weight.data, out);
}

void CheckedOperators::LayerNormBackward(Stream& stream, const ConstTensorView& x,
                                         const ConstTensorView& weight, const ConstTensorView& mean,
                                         const ConstTensorView& rstd, const ConstTensorView& d_out,
                                         bool add_to_d_x, const TensorView& d_x,
                                         const TensorView& d_weight, const TensorView& d_bias) {
  inner_.LayerNormBackward(stream, x, weight, mean, rstd, d_out, add_to_d_x, d_x, d_weight, d_bias);
  Look(stream, Operation::kNorm, Role::kInputGradient, weight.data, d_x);
  Look(stream, Operation::kNorm, Role::kParameterGradient, d_weight.data, d_weight);
  Look(stream, Operation::kNorm, Role::kParameterGradient, d_bias.data, d_bias);
}

void CheckedOperators::LinearForward(Stream& stream, const ConstTensorView& x,
                                     const ConstTensorView& weight, const ConstTensorView& bias,
                                     const ConstTensorView& residual, const TensorView& out) {
  inner_.LinearForward(stream, x, weight, bias, residual, out);
  Look(stream, Operation::kLinear, Role::kOutput, weight.data, out);
}

void CheckedOperators::LinearBackwardInput(Stream& stream, const ConstTensorView& d_out,
                                           const ConstTensorView& weight, const TensorView& d_x) {
  inner_.LinearBackwardInput(stream, d_out, weight, d_x);
  Look(stream, Operation::kLinear, Role::kInputGradient, weight.data, d_x);
}

void CheckedOperators::LinearBackwardWeight(Stream& stream, const ConstTensorView& x,
                                            const ConstTensorView& d_out,
                                            const TensorView& d_weight, const TensorView& d_bias) {
  inner_.LinearBackwardWeight(stream, x, d_out, d_weight, d_bias);
  Look(stream, Operation::kLinear, Role::kParameterGradient, d_weight.data, d_weight);
  Look(stream, Operation::kLinear, Role::kParameterGradient, d_bias.data, d_bias);
}

void CheckedOperators::AttentionForward(Stream& stream, uint64_t heads, const ConstTensorView& qkv,
                                        const TensorView& out) {
  inner_.AttentionForward(stream, heads, qkv, out);
  Look(stream, Operation::kAttention, Role::kOutput, nullptr, out);
}

void CheckedOperators::AttentionBackward(Stream& stream, uint64_t heads, const ConstTensorView& qkv,
                                         const ConstTensorView& out, const ConstTensorView& d_out,
                                         const TensorView& d_qkv) {
  inner_.AttentionBackward(stream, heads, qkv, out, d_out, d_qkv);
  Look(stream, Operation::kAttention, Role::kInputGradient, nullptr, d_qkv);
}

void CheckedOperators::LinearGeluForward(Stream& stream, const ConstTensorView& x,
                                         const ConstTensorView& weight, const ConstTensorView& bias,
                                         const TensorView& pre, const TensorView& out) {
  inner_.LinearGeluForward(stream, x, weight, bias, pre, out);
  Look(stream, Operation::kLinear, Role::kOutput, weight.data, pre);
  Look(stream, Operation::kGelu, Role::kOutput, nullptr, out);
}

void CheckedOperators::LinearGeluBackwardInput(Stream& stream, const ConstTensorView& d_out,
                                               const ConstTensorView& weight,
                                               const ConstTensorView& pre,
                                               const TensorView& d_pre) {
  inner_.LinearGeluBackwardInput(stream, d_out, weight, pre, d_pre);
  Look(stream, Operation::kLinear, Role::kInputGradient, weight.data, d_pre);
}

void CheckedOperators::HeadForwardBackward(Stream& stream, const ConstTensorView& x,
                                           const ConstTensorView& table, const TokenView& targets,
                                           float gradient_scale, double* loss_sum,
                                           const TensorView& d_x, const TensorView& d_table) {
  inner_.HeadForwardBackward(stream, x, table, targets, gradient_scale, loss_sum, d_x, d_table);
  Look(stream, Operation::kHead, Role::kInputGradient, table.data, d_x);
  Look(stream, Operation::kHead, Role::kParameterGradient, d_table.data, d_table);
}

void CheckedOperators::FindBeyond(Stream& stream, const ConstTensorView& x, float limit,
                                  uint64_t base, uint64_t* first) {
  inner_.FindBeyond(stream, x, limit, base, first);
}

WrittenTensor TensorOf(const CheckedOperators::Finding& finding,
                       const offload::ShardLayout& layout) {
  const ComputePlace& place = finding.place;
  WrittenTensor written{.backward = place.backward,
                        .module = place.module,
                        .operation = finding.operation,
                        .role = finding.role};
  if (finding.tensor == nullptr) return written;
  const std::vector<offload::TensorLayout>& tensors = layout.module(place.module).tensors;
  const bool gradient = finding.role == CheckedOperators::Role::kParameterGradient;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (AddressOf(layout, place, tensors[i], gradient) == finding.tensor) written.parameter = i;
  }
  return written;
}

std::string NameOf(const WrittenTensor& tensor, const offload::ModelLayout& layout) {
  const offload::ModuleLayout& module = layout.module(tensor.module);
  const bool whole = tensor.role == CheckedOperators::Role::kParameterGradient;
  // Its parameter is that of the embedding.
  if (tensor.operation == CheckedOperators::Operation::kHead && !whole) return "the head";
  if (!tensor.parameter) return module.name + " " + ToText(tensor.operation);
  const std::string& name = module.tensors[*tensor.parameter].name;
  const size_t end = name.rfind(".weight");
  return whole || end == std::string::npos ? name : name.substr(0, end);
}

}  // namespace penstock::train
