#include "device/arena.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "device/device.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace penstock::device {
namespace {

/// Under the address sanitizer, all but the pieces that are taken is off limits, their padding
/// included, so that work that leaves or outlives its buffer shows. (Pieces whose size is a
/// multiple of kDeviceAlignment may touch: a gap would be no part of any budget.)
void Forbid([[maybe_unused]] std::byte* data, [[maybe_unused]] Bytes size) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(data, size.value);
#endif
}
void Allow([[maybe_unused]] std::byte* data, [[maybe_unused]] Bytes size) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(data, size.value);
#endif
}

}  // namespace

Arena::Arena(std::byte* base, Bytes limit) : base_(base), limit_(limit) {
  PENSTOCK_CHECK(reinterpret_cast<uintptr_t>(base) % kDeviceAlignment.value == 0);
  MutexLock lock(mutex_);
  if (limit.value > 0) holes_.emplace(0, limit.value);
  Forbid(base, limit);
}

Arena::~Arena() {
  MutexLock lock(mutex_);
  PENSTOCK_CHECK(used_ == 0_B, "{} of device memory outlive their device", ToString(used_));
  Allow(base_, limit_);
}

Result<std::byte*> Arena::Take(Bytes size, const std::string& what) {
  PENSTOCK_CHECK(size > 0_B);
  const Bytes rounded = AlignUp(size, kDeviceAlignment);
  MutexLock lock(mutex_);
  const auto hole = std::find_if(holes_.begin(), holes_.end(),
                                 [&](const auto& h) { return h.second >= rounded.value; });
  if (hole == holes_.end()) return DoesNotFit(rounded, what);
  const auto [offset, hole_size] = *hole;
  holes_.erase(hole);
  if (hole_size > rounded.value) {
    holes_.emplace(offset + rounded.value, hole_size - rounded.value);
  }
  used_ += rounded;
  peak_ = std::max(peak_, used_);
  std::byte* const data = base_ + offset;
  Allow(data, size);
  return data;
}

Error Arena::DoesNotFit(Bytes size, const std::string& what) const {
  const Bytes sum = used_ + size;
  if (sum > limit_) {
    return MakeError(
        ErrorCode::kBudget,
        "device memory: {} for {} do not fit: with the {} taken that makes {} bytes of "
        "{} bytes; raise device_memory to at least {} bytes",
        ToString(size), what, ToString(used_), sum.value, limit_.value, sum.value);
  }
  uint64_t largest = 0;
  for (const auto& [offset, hole_size] : holes_) largest = std::max(largest, hole_size);
  return MakeError(
      ErrorCode::kBudget,
      "device memory: {} for {} do not fit in one piece: {} of {} bytes are taken, but "
      "the largest free piece has {} bytes; raise device_memory by {} bytes",
      ToString(size), what, used_.value, limit_.value, largest, size.value);
}

void Arena::Give(std::byte* data, Bytes size) {
  const Bytes rounded = AlignUp(size, kDeviceAlignment);
  MutexLock lock(mutex_);
  PENSTOCK_CHECK(Contains(data, rounded) && used_ >= rounded);
  AddHole(static_cast<uint64_t>(data - base_), rounded.value);
  used_ -= rounded;
  Forbid(data, rounded);
}

void Arena::AddHole(uint64_t offset, uint64_t size) {
  auto next = holes_.lower_bound(offset);
  PENSTOCK_CHECK(next == holes_.end() || offset + size <= next->first, "given back twice");
  if (next != holes_.end() && offset + size == next->first) {
    size += next->second;
    next = holes_.erase(next);
  }
  if (next != holes_.begin()) {
    const auto before = std::prev(next);
    PENSTOCK_CHECK(before->first + before->second <= offset, "given back twice");
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  holes_.emplace_hint(next, offset, size);
}

bool Arena::Contains(const std::byte* data, Bytes size) const {
  const auto first = reinterpret_cast<uintptr_t>(base_);
  const auto address = reinterpret_cast<uintptr_t>(data);
  return address >= first && size <= limit_ && address - first <= limit_.value - size.value;
}

Bytes Arena::used() const {
  MutexLock lock(mutex_);
  return used_;
}

Bytes Arena::peak() const {
  MutexLock lock(mutex_);
  return peak_;
}

}  // namespace penstock::device
