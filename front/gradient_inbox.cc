#include "front/gradient_inbox.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "front/parallel_copy.h"
#include "kernels/convert_elements.h"

namespace penstock::front {
namespace {

using kernels::ConvertElements;
using offload::Index;
using offload::ModuleId;

/// How many elements are converted at once, in the cache.
constexpr uint64_t kPiece = 4096;

/// Shares of a tensor alternate in blocks of this many elements, which fit in a core's cache.
constexpr uint64_t kStripe = 32 << 10;

/// How many names a message lists.
constexpr size_t kMaxNames = 5;

/// sums[i] += values[i]; the first time, sums[i] = values[i]. A sum of zeros keeps the sign that
/// plain assignment has.
void AddTo(float* sums, const void* values, DType dtype, uint64_t count, bool first) {
  const auto* bytes = static_cast<const std::byte*>(values);
  if (first) {
    if (values == nullptr) {
      std::memset(sums, 0, sizeof(float) * count);
    } else {
      ConvertElements(dtype, values, DType::kFloat32, sums, count);
    }
    return;
  }
  if (values == nullptr) return;
  std::array<float, kPiece> piece;
  for (uint64_t begin = 0; begin < count; begin += kPiece) {
    const uint64_t size = std::min(kPiece, count - begin);
    ConvertElements(dtype, bytes + (SizeOf(dtype) * begin).value, DType::kFloat32, piece.data(),
                    size);
    for (uint64_t i = 0; i < size; ++i) sums[begin + i] += piece[i];
  }
}

/// Rounds sums[i] + values[i] to the dtype of the weight, nearest even: the last addition.
void RoundSums(const float* sums, const void* values, DType dtype, uint64_t count, DType weight,
               std::byte* place) {
  if (values == nullptr) {
    ConvertElements(DType::kFloat32, sums, weight, place, count);
    return;
  }
  const auto* bytes = static_cast<const std::byte*>(values);
  std::array<float, kPiece> piece;
  for (uint64_t begin = 0; begin < count; begin += kPiece) {
    const uint64_t size = std::min(kPiece, count - begin);
    ConvertElements(dtype, bytes + (SizeOf(dtype) * begin).value, DType::kFloat32, piece.data(),
                    size);
    for (uint64_t i = 0; i < size; ++i) piece[i] = sums[begin + i] + piece[i];
    ConvertElements(DType::kFloat32, piece.data(), weight, place + (SizeOf(weight) * begin).value,
                    size);
  }
}

DType WeightOf(const offload::ShardLayout& layout, const offload::TensorLayout& tensor) {
  return static_cast<DType>(layout.model.group(tensor.group).planes.weight().encoding);
}

bool AddsAside(DType weight, uint64_t micro_batches) {
  return weight != DType::kFloat32 && micro_batches > 1;
}

}  // namespace

Bytes GradientInbox::Need(const offload::ShardLayout& layout, uint64_t micro_batches) {
  uint64_t elements = 0;
  for (const offload::ModuleLayout& module : layout.model.modules) {
    for (const offload::TensorLayout& tensor : module.tensors) {
      const bool trained = !layout.model.group(tensor.group).frozen;
      if (trained && AddsAside(WeightOf(layout, tensor), micro_batches)) {
        elements += tensor.elements;
      }
    }
  }
  return AlignUp(Bytes{sizeof(float)} * elements, 4_KiB);
}

Bytes GradientInbox::DeviceNeed(const offload::ShardLayout& layout) {
  uint64_t elements = 0;
  for (const offload::ModuleLayout& module : layout.model.modules) {
    for (const offload::TensorLayout& tensor : module.tensors) {
      if (!layout.model.group(tensor.group).frozen) elements += tensor.elements;
    }
  }
  return Bytes{sizeof(float)} * elements;
}

Result<GradientInbox> GradientInbox::Create(const offload::ShardLayout& layout,
                                            uint64_t micro_batches, bool holds,
                                            Callbacks callbacks) {
  GradientInbox inbox(layout, micro_batches, holds);
  inbox.callbacks_ = std::move(callbacks);
  uint64_t elements = 0;
  for (const offload::ModuleLayout& layout_of : layout.model.modules) {
    Module module;
    for (const offload::TensorLayout& tensor : layout_of.tensors) {
      Tensor entry{.trained = !layout.model.group(tensor.group).frozen, .sum = elements};
      entry.added_aside = entry.trained && AddsAside(WeightOf(layout, tensor), micro_batches);
      if (entry.added_aside) elements += tensor.elements;
      if (entry.trained) ++module.trained;
      module.tensors.push_back(entry);
    }
    inbox.modules_.push_back(std::move(module));
  }
  if (elements > 0 && !inbox.callbacks_.round) {
    PENSTOCK_ASSIGN(inbox.sums_, Mapping::Create(Need(layout, micro_batches)));
  }
  return inbox;
}

std::byte* GradientInbox::PlaceOf(ModuleId module, const offload::TensorLayout& tensor) const {
  const offload::TileId tile = layout_.TileAt(module, tensor.offset);
  const DType dtype = layout_.GradientDType(tile);
  return callbacks_.place(tile) +
         (SizeOf(dtype) * (tensor.offset - layout_.tile(tile).begin)).value;
}

Status GradientInbox::CheckDType(ModuleId module, uint32_t tensor, DType dtype) const {
  const offload::TensorLayout& layout = layout_.module(module).tensors[tensor];
  if (!modules_[Index(module)].tensors[tensor].trained) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "tensor {} is frozen, and got a gradient; give none, or train its group",
                     layout.name);
  }
  const DType weight = WeightOf(layout_, layout);
  if (dtype != weight && dtype != DType::kFloat32) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "tensor {} has weights of {}, and got a gradient of {}; give one of {} or "
                     "fp32",
                     layout.name, ToString(weight), ToString(dtype), ToString(weight));
  }
  return {};
}

Status GradientInbox::CheckAdd(ModuleId module, uint32_t tensor, DType dtype) const {
  PENSTOCK_TRY(CheckDType(module, tensor, dtype));
  const offload::TensorLayout& layout = layout_.module(module).tensors[tensor];
  const Tensor& entry = modules_[Index(module)].tensors[tensor];
  if (entry.count >= micro_batches_ || modules_[Index(module)].closed) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "tensor {} got {} gradients in this step, or one after its norm was taken, "
                     "and a step takes {} (gradient_accumulation_steps; one if the caller adds up "
                     "micro-batches); end the step before the next backward, or raise "
                     "gradient_accumulation_steps",
                     layout.name, entry.count + 1, micro_batches_);
  }
  return {};
}

/// Where the bytes of a gradient can be copied; null if they must be added or converted.
std::byte* GradientInbox::DirectPlace(const Announced& gradient) const {
  const offload::TensorLayout& layout = layout_.module(gradient.module).tensors[gradient.tensor];
  const DType weight = WeightOf(layout_, layout);
  const bool aside = modules_[Index(gradient.module)].tensors[gradient.tensor].added_aside;
  const bool as_it_is = gradient.dtype == weight && gradient.first && !aside;
  return as_it_is ? PlaceOf(gradient.module, layout) : nullptr;
}

Result<GradientInbox::Announced> GradientInbox::Announce(ModuleId module, uint32_t tensor,
                                                         DType dtype) {
  PENSTOCK_TRY(CheckAdd(module, tensor, dtype));
  Module& of = modules_[Index(module)];
  Announced gradient{.module = module,
                     .tensor = tensor,
                     .elements = layout_.module(module).tensors[tensor].elements,
                     .dtype = dtype,
                     .first = of.tensors[tensor].count == 0};
  gradient.direct = DirectPlace(gradient);
  gradient.place = PlaceOf(module, layout_.module(module).tensors[tensor]);
  if (of.tensors[tensor].added_aside) gradient.sum = of.tensors[tensor].sum;
  gradient.rounds = ++of.tensors[tensor].count == micro_batches_;
  if (gradient.rounds) ++of.full;
  gradient.last = !holds_ && of.full == of.trained;
  if (gradient.last) CloseModule(module);
  return gradient;
}

void GradientInbox::Put(const Announced& gradient, uint64_t begin, uint64_t count,
                        const void* values, int threads) {
  const auto* bytes = static_cast<const std::byte*>(values);
  ForEachPart(count, threads, [&](uint64_t first, uint64_t size) {
    PutPart(gradient, begin + first, size,
            bytes == nullptr ? nullptr : bytes + (SizeOf(gradient.dtype) * first).value);
  });
}

void GradientInbox::PutShare(const Announced& gradient, uint64_t begin, uint64_t count,
                             const void* values, const CallTeam::Share& share) {
  const auto* bytes = static_cast<const std::byte*>(values);
  const uint64_t end = begin + count;
  // Small tensors must not all fall to the first share.
  const uint64_t turn = Index(gradient.module) + gradient.tensor;
  for (uint64_t at = begin; at < end;) {
    const uint64_t stripe = at / kStripe;
    const uint64_t next = std::min(end, (stripe + 1) * kStripe);
    if ((stripe + turn) % share.of == share.number) {
      PutPart(gradient, at, next - at,
              bytes == nullptr ? nullptr : bytes + (SizeOf(gradient.dtype) * (at - begin)).value);
    }
    at = next;
  }
}

void GradientInbox::PutPart(const Announced& gradient, uint64_t begin, uint64_t count,
                            const void* values) {
  const offload::TensorLayout& layout = layout_.module(gradient.module).tensors[gradient.tensor];
  const Tensor& entry = modules_[Index(gradient.module)].tensors[gradient.tensor];
  const DType weight = WeightOf(layout_, layout);
  std::byte* const place = PlaceOf(gradient.module, layout) + (SizeOf(weight) * begin).value;
  if (entry.added_aside) {
    float* sums = reinterpret_cast<float*>(sums_.data()) + entry.sum + begin;
    if (gradient.rounds) {
      RoundSums(sums, values, gradient.dtype, count, weight, place);
    } else {
      AddTo(sums, values, gradient.dtype, count, gradient.first);
    }
  } else if (weight == DType::kFloat32) {
    AddTo(reinterpret_cast<float*>(place), values, gradient.dtype, count, gradient.first);
  } else if (values == nullptr) {
    std::memset(place, 0, (SizeOf(weight) * count).value);
  } else {
    ConvertElements(gradient.dtype, values, weight, place, count);
  }
}

void GradientInbox::Arrived(const Announced& gradient) {
  if (gradient.last) callbacks_.complete(gradient.module);
}

Status GradientInbox::Add(ModuleId module, uint32_t tensor, const void* values, DType dtype,
                          int threads) {
  PENSTOCK_ASSIGN(const Announced gradient, Announce(module, tensor, dtype));
  Put(gradient, 0, gradient.elements, values, threads);
  Arrived(gradient);
  return {};
}

Status GradientInbox::CheckHas(ModuleId module, uint32_t tensor) const {
  if (modules_[Index(module)].tensors[tensor].count > 0) return {};
  return MakeError(ErrorCode::kInvalidArgument, "tensor {} has no gradient in this step yet",
                   layout_.module(module).tensors[tensor].name);
}

Status GradientInbox::Read(ModuleId module, uint32_t tensor, float* to, int threads) const {
  PENSTOCK_TRY(CheckHas(module, tensor));
  const offload::TensorLayout& layout = layout_.module(module).tensors[tensor];
  const Tensor& entry = modules_[Index(module)].tensors[tensor];
  const DType dtype = IsSum(entry) ? DType::kFloat32 : WeightOf(layout_, layout);
  const std::byte* const from =
      IsSum(entry) ? sums_.data() + sizeof(float) * entry.sum : PlaceOf(module, layout);
  ForEachPart(layout.elements, threads, [&](uint64_t begin, uint64_t count) {
    ConvertElements(dtype, from + (SizeOf(dtype) * begin).value, DType::kFloat32, to + begin,
                    count);
  });
  return {};
}

Status GradientInbox::Replace(ModuleId module, uint32_t tensor, const void* values, DType dtype,
                              int threads) {
  PENSTOCK_TRY(CheckDType(module, tensor, dtype));
  PENSTOCK_TRY(CheckHas(module, tensor));
  const offload::TensorLayout& layout = layout_.module(module).tensors[tensor];
  if (modules_[Index(module)].closed) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the gradient of tensor {} was replaced after its norm was taken, or that of "
                     "its unit, which is so as soon as it is complete without \"holds_gradients\"",
                     layout.name);
  }
  const Tensor& entry = modules_[Index(module)].tensors[tensor];
  const DType to = IsSum(entry) ? DType::kFloat32 : WeightOf(layout_, layout);
  std::byte* const place =
      IsSum(entry) ? sums_.data() + sizeof(float) * entry.sum : PlaceOf(module, layout);
  const auto* const from = static_cast<const std::byte*>(values);
  ForEachPart(layout.elements, threads, [&](uint64_t begin, uint64_t count) {
    ConvertElements(dtype, from + (SizeOf(dtype) * begin).value, to,
                    place + (SizeOf(to) * begin).value, count);
  });
  return {};
}

void GradientInbox::CloseModule(ModuleId module) {
  modules_[Index(module)].closed = true;
  callbacks_.last(module);
}

/// Rounds the separate sums of tensors that got fewer gradients than there are micro-batches.
void GradientInbox::RoundRest(ModuleId module, int threads) {
  const std::vector<offload::TensorLayout>& tensors = layout_.module(module).tensors;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& entry = modules_[Index(module)].tensors[i];
    if (!entry.added_aside || entry.count == micro_batches_) continue;
    if (callbacks_.round) {
      callbacks_.round(module, static_cast<uint32_t>(i), entry.sum, PlaceOf(module, tensors[i]));
      continue;
    }
    const DType weight = WeightOf(layout_, tensors[i]);
    const float* sums = reinterpret_cast<const float*>(sums_.data()) + entry.sum;
    std::byte* const place = PlaceOf(module, tensors[i]);
    ForEachPart(tensors[i].elements, threads, [&](uint64_t begin, uint64_t count) {
      ConvertElements(DType::kFloat32, sums + begin, weight, place + (SizeOf(weight) * begin).value,
                      count);
    });
  }
}

Status GradientInbox::CompleteAll(int threads) {
  std::string names;
  size_t missing = 0;
  for (size_t i = 0; i < modules_.size(); ++i) {
    const std::vector<offload::TensorLayout>& tensors = layout_.model.modules[i].tensors;
    for (size_t j = 0; j < tensors.size(); ++j) {
      const Tensor& tensor = modules_[i].tensors[j];
      if (!tensor.trained || tensor.count > 0) continue;
      if (missing++ < kMaxNames) names += (names.empty() ? "" : ", ") + tensors[j].name;
    }
  }
  if (missing > 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} of the trained tensors got no gradient in this step: {}{}; freeze what "
                     "the loss does not depend on, or give zeros",
                     missing, names, missing > kMaxNames ? ", …" : "");
  }
  for (const ModuleId id : offload::Ids<ModuleId>(modules_.size())) {
    const Module& module = modules_[Index(id)];
    if (module.trained == 0 || module.closed) continue;
    CloseModule(id);
    RoundRest(id, threads);
    callbacks_.complete(id);
  }
  return {};
}

void GradientInbox::Clear() {
  for (Module& module : modules_) {
    for (Tensor& tensor : module.tensors) tensor.count = 0;
    module.full = 0;
    module.closed = false;
  }
}

}  // namespace penstock::front
