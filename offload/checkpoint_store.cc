#include "offload/checkpoint_store.h"

#include <limits>

#include "base/check.h"

namespace penstock::offload {
namespace {

/// The alignment of a checkpoint in host memory: no two share a page.
constexpr Bytes kHostAlignment = 4_KiB;

bool OnHost(const CheckpointStore::Options& options) { return options.slots < options.checkpoints; }

}  // namespace

Bytes CheckpointStore::DeviceBytes(const Options& options) {
  return AlignUp(options.size, device::kDeviceAlignment) * options.slots;
}

Bytes CheckpointStore::HostBytes(const Options& options) {
  return OnHost(options) ? AlignUp(options.size, kHostAlignment) * options.checkpoints : Bytes{};
}

Bytes CheckpointStore::BookkeepingBytes(const Options& options, uint64_t accesses,
                                        uint64_t kernels) {
  // Checkpoints, accesses and kernels have numbers of 32 bits.
  constexpr uint64_t kMaxUint32 = std::numeric_limits<uint32_t>::max();
  if (accesses > kMaxUint32 || kernels > kMaxUint32) return Bytes{kMaxCount};
  const Bytes of_checkpoint{sizeof(std::byte*) + sizeof(device::Event) + sizeof(Slot)};
  return PlanBytes(options.checkpoints, options.slots, accesses, kernels) +
         of_checkpoint * options.checkpoints;
}

Result<CheckpointStore> CheckpointStore::Create(const Options& options, device::Device& device) {
  CheckpointStore store;
  store.plan_ = PlanCheckpoints(options.accesses, static_cast<uint32_t>(options.slots));
  store.size_ = options.size;
  store.slots_.reserve(options.slots);
  for (uint64_t i = 0; i < options.slots; ++i) {
    PENSTOCK_ASSIGN(device::DeviceBuffer buffer,
                    device.Allocate(options.size, "activation checkpoints"));
    store.slots_.push_back({.buffer = std::move(buffer)});
  }
  if (!OnHost(options)) return store;
  PENSTOCK_ASSIGN(store.host_, device.AllocateHost(HostBytes(options)));
  const size_t stride = AlignUp(options.size, kHostAlignment).value;
  store.on_host_.reserve(options.checkpoints);
  for (uint64_t i = 0; i < options.checkpoints; ++i) {
    store.on_host_.push_back(store.host_.data() + i * stride);
  }
  store.out_.resize(options.checkpoints);
  PENSTOCK_ASSIGN(store.copy_out_, device.CreateStream("checkpoints-out"));
  PENSTOCK_ASSIGN(store.copy_in_, device.CreateStream("checkpoints-in"));
  return store;
}

void CheckpointStore::PlanSteps(const std::vector<CheckpointAccess>& accesses) {
  plan_ = {};  // there is memory for one
  plan_ = PlanCheckpoints(accesses, static_cast<uint32_t>(slots_.size()));
}

void CheckpointStore::BeginStep() {
  next_use_ = 0;
  kernel_begin_ = 0;
}

std::byte* CheckpointStore::Access(uint32_t checkpoint, bool write, device::Stream& compute) {
  const CheckpointPlan::Use& use = plan_.uses[next_use_];
  PENSTOCK_CHECK(use.access.checkpoint == checkpoint && use.access.write == write,
                 "checkpoint {} was {} where the plan has {}", checkpoint,
                 write ? "written" : "read", use.access.checkpoint);
  ++next_use_;
  Slot& slot = slots_[use.slot];
  if (write) {
    compute.Wait(slot.copied);
  } else {
    compute.Wait(slot.fetched, device::WaitReason::kData);
  }
  return slot.buffer.data();
}

void CheckpointStore::EndKernel(device::Stream& compute) {
  PENSTOCK_CHECK(next_use_ > kernel_begin_, "a kernel without access to a checkpoint");
  const uint32_t kernel = plan_.uses[kernel_begin_].access.kernel;
  for (size_t i = kernel_begin_; i < next_use_; ++i) {
    PENSTOCK_CHECK(plan_.uses[i].access.kernel == kernel);
    if (plan_.uses[i].copy_out) CopyOut(plan_.uses[i], compute);
  }
  const std::vector<CheckpointPlan::Fetch>& fetches = plan_.fetches[kernel];
  if (!fetches.empty()) copy_in_->Wait(compute.Record());
  for (const CheckpointPlan::Fetch& fetch : fetches) {
    Slot& slot = slots_[fetch.slot];
    copy_in_->Wait(slot.copied);
    copy_in_->Wait(out_[fetch.checkpoint]);
    copy_in_->CopyToDevice(slot.buffer.data(), on_host_[fetch.checkpoint], size_);
    slot.fetched = copy_in_->Record();
  }
  kernel_begin_ = next_use_;
}

void CheckpointStore::CopyOut(const CheckpointPlan::Use& use, device::Stream& compute) {
  Slot& slot = slots_[use.slot];
  copy_out_->Wait(compute.Record());
  copy_out_->CopyToHost(on_host_[use.access.checkpoint], slot.buffer.data(), size_);
  slot.copied = copy_out_->Record();
  out_[use.access.checkpoint] = slot.copied;
}

Status CheckpointStore::Synchronize() {
  if (copy_out_ == nullptr) return {};
  PENSTOCK_TRY(copy_out_->Synchronize());
  return copy_in_->Synchronize();
}

}  // namespace penstock::offload
