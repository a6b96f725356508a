// Training: weights and gradients of a caller on a CUDA device.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "front/parallel_copy.h"
#include "front/training.h"

namespace penstock::front {
namespace {

using offload::ModuleId;
using offload::TileId;

CuDevicePointer AddressOf(const void* data) { return reinterpret_cast<CuDevicePointer>(data); }

}  // namespace

Status Training::CheckDevice() const {
  if (plan_.cuda) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "memory of a GPU was given, and the engine was made without the option "
                   "\"cuda\"; make it with it, or give memory of the host");
}

/// Prepares copies before the first one, and makes their context current.
Result<ContextScope> Training::EnterCopies(CuStream stream) {
  PENSTOCK_TRY(CheckReady());
  PENSTOCK_TRY(CheckDevice());
  if (home_ != nullptr) return home_->EnterWith(stream);
  if (copies_ == nullptr) {
    std::vector<std::span<std::byte>> memory = host_->engine().copied_memory();
    memory.push_back(room_.bytes());
    PENSTOCK_ASSIGN(
        copies_, DeviceCopies::Create(stream, memory, std::min(copy_threads(), kMaxMemoryThreads)));
  }
  return copies_->Enter(stream);
}

/// Waits for all copies in progress, and the host work after them.
Status Training::AwaitCopies() { return copies_ == nullptr ? Status() : Keep(copies_->Wait()); }

Status Training::AwaitGradients() {
  return copies_ == nullptr ? Status() : Keep(copies_->WaitForGradients());
}

Status Training::UseOn(uint32_t unit, UseKind kind, const UnitMemory& to, CuStream stream) {
  PENSTOCK_TRY(CheckDevice());
  if (!to.wanted()) return Use(unit, kind, to);
  PENSTOCK_ASSIGN(const ContextScope scope, EnterCopies(stream));
  PENSTOCK_TRY(BeginUse(unit, kind, /*brings=*/true));
  if (home_ != nullptr) return Keep(home_->CopyWeights(ModuleId{unit}, to, stream));
  PENSTOCK_TRY(Keep(EnqueueWeights(ModuleId{unit}, to, stream)));
  host_->Settled(ModuleId{unit});
  return {};
}

Status Training::EnqueueWeights(ModuleId module, const UnitMemory& to, CuStream stream) {
  offload::IdRange<TileId> tiles = plan_.layout.TilesOf(module);
  while (tiles.size() > 0) {
    Result<offload::PinnedWeights> pinning = host_->engine().store().PinWeights(tiles, kMaxAtOnce);
    if (!pinning.ok()) {
      PENSTOCK_TRY(copies_->AfterWeights(stream, [](const Status&) {}));  // copies may be under way
      return pinning.error();
    }
    offload::PinnedWeights pinned = *std::move(pinning);
    const size_t count = pinned.weights().size();
    std::vector<Copy> copies;
    for (size_t i = 0; i < count; ++i) {
      to.AddCopies(plan_.layout, tiles[i], pinned.weights()[i], copies);
    }
    Status copied;
    for (size_t i = 0; copied.ok() && i < copies.size(); ++i) {
      copied = copies_->ToDevice(stream, AddressOf(copies[i].to), copies[i].from);
    }
    tiles = tiles.Part(count, tiles.size() - count);
    // Weights without a lease are updated in place, so the end of a step waits once for each unit.
    if (pinned.holds_blocks() || tiles.size() == 0 || !copied.ok()) {
      // A std::function must be copyable, and a lease is not: its copies share one.
      auto lease = std::make_shared<offload::PinnedWeights>(std::move(pinned));
      PENSTOCK_TRY(copies_->AfterWeights(stream, [lease](const Status&) { lease->Release(); }));
    }
    if (!copied.ok()) return copied;
  }
  return {};
}

Status Training::GradientOn(uint32_t unit, uint32_t tensor, const void* values, DType dtype,
                            CuStream stream) {
  if (values == nullptr) {
    PENSTOCK_TRY(CheckDevice());
    return Gradient(unit, tensor, nullptr, dtype);
  }
  PENSTOCK_ASSIGN(const ContextScope scope, EnterCopies(stream));
  PENSTOCK_TRY(BeginGradient(unit, tensor));
  if (home_ != nullptr) return AddToHome(unit, tensor, values, dtype, stream);
  PENSTOCK_ASSIGN(const GradientInbox::Announced gradient,
                  inbox_->Announce(ModuleId{unit}, tensor, dtype));
  if (gradient.direct == nullptr) return Keep(EnqueuePieces(gradient, AddressOf(values), stream));
  const std::span to(gradient.direct, (SizeOf(dtype) * gradient.elements).value);
  const Status copied = copies_->ToHost(stream, to, AddressOf(values));
  PENSTOCK_TRY(Keep(copies_->AfterGradient(
      stream, [](const CallTeam::Share&) {},
      [this, gradient](const Status& arrived) {
        if (arrived.ok()) inbox_->Arrived(gradient);
      })));
  return Keep(copied);
}

/// Adds up a gradient on the device, where the states are at home.
Status Training::AddToHome(uint32_t unit, uint32_t tensor, const void* values, DType dtype,
                           CuStream stream) {
  PENSTOCK_ASSIGN(const GradientInbox::Announced gradient,
                  inbox_->Announce(ModuleId{unit}, tensor, dtype));
  PENSTOCK_TRY(Keep(home_->AddGradient(gradient, static_cast<const std::byte*>(values), stream)));
  inbox_->Arrived(gradient);
  return {};
}

/// Copies a gradient through the room, piece by piece.
Status Training::EnqueuePieces(const GradientInbox::Announced& gradient, CuDevicePointer from,
                               CuStream stream) {
  const Bytes element = SizeOf(gradient.dtype);
  for (uint64_t begin = 0; begin < gradient.elements;) {
    const std::span<std::byte> piece = room_.Take(element * (gradient.elements - begin));
    const uint64_t count =
        std::min<uint64_t>(piece.size() / element.value, gradient.elements - begin);
    Status copied = copies_->ToHost(stream, piece.first((element * count).value),
                                    from + (element * begin).value);
    const bool last = begin + count == gradient.elements;
    PENSTOCK_TRY(copies_->AfterGradient(
        stream,
        [=, this](const CallTeam::Share& share) {
          inbox_->PutShare(gradient, begin, count, piece.data(), share);
        },
        [=, this](const Status& arrived) {
          room_.GiveBack(piece);
          if (arrived.ok() && last) inbox_->Arrived(gradient);
        }));
    if (!copied.ok()) return copied;
    begin += count;
  }
  return {};
}

/// Adds zeros after the gradients that are arriving from the device, without waiting for these.
Status Training::EnqueueZeros(ModuleId module, uint32_t tensor, DType dtype) {
  PENSTOCK_ASSIGN(const GradientInbox::Announced gradient, inbox_->Announce(module, tensor, dtype));
  copies_->AddGradient(
      [this, gradient](const CallTeam::Share& share) {
        inbox_->PutShare(gradient, 0, gradient.elements, nullptr, share);
      },
      [this, gradient](const Status& arrived) {
        if (arrived.ok()) inbox_->Arrived(gradient);
      });
  return {};
}

}  // namespace penstock::front
