#include "tests/front/fake_cuda/ranges.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace fake_cuda {

Memory& TheMemory() {
  static Memory& memory = *new Memory;  // threads of streams outlive main
  return memory;
}

uint64_t Memory::Allocate(size_t size) {
  const std::scoped_lock lock(mutex_);
  if (used_ > size_ || size > size_ - used_) return 0;
  const size_t pages = (size + 8191) / 4096 * 4096;
  auto* const data = static_cast<std::byte*>(std::aligned_alloc(4096, pages));
  if (data == nullptr) return 0;
  std::memset(data, 0x7f, pages);
  used_ += size;
  peak_ = std::max(peak_, used_);
  const uint64_t address = mapped_ ? reinterpret_cast<uint64_t>(data) : next_;
  if (!mapped_) next_ += pages;
  blocks_.emplace(address, Block{{data, std::free}, size});
  return address;
}

void Memory::Map() {
  const std::scoped_lock lock(mutex_);
  mapped_ = true;
}

void Memory::Resize(size_t size) {
  const std::scoped_lock lock(mutex_);
  size_ = size;
}

std::pair<size_t, size_t> Memory::FreeAndSize() {
  const std::scoped_lock lock(mutex_);
  return {size_ - std::min(used_, size_), size_};
}

size_t Memory::TakePeak() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(peak_, used_);
}

void Memory::Share() {
  const std::scoped_lock lock(mutex_);
  mapped_ = true;
  shared_ = true;
}

bool Memory::Free(uint64_t address) {
  const std::scoped_lock lock(mutex_);
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return false;
  const Range range{address, found->second.size};
  if (std::ranges::any_of(under_way_, [&](const Copy& c) { return c.device.Meets(range); })) {
    Note("device memory was freed while a copy of it was under way");
  }
  used_ -= range.size;
  blocks_.erase(found);
  return true;
}

std::byte* Memory::FindLocked(const Range& range) {
  if (shared_ && range.begin < kFirstOfDevice) return reinterpret_cast<std::byte*>(range.begin);
  auto found = blocks_.upper_bound(range.begin);
  if (found == blocks_.begin()) return nullptr;
  --found;
  const Range block{found->first, found->second.size};
  return block.Contains(range) ? found->second.data.get() + (range.begin - block.begin) : nullptr;
}

std::byte* Memory::Find(const Range& range, const char* what) {
  const std::scoped_lock lock(mutex_);
  std::byte* const data = FindLocked(range);
  if (data == nullptr) Note(std::string(what) + " uses device memory that is not allocated");
  return data;
}

bool Memory::Register(const Range& range) {
  const std::scoped_lock lock(mutex_);
  if (std::ranges::any_of(registered_, [&](const Range& r) { return r.Meets(range); })) {
    return false;
  }
  registered_.push_back(range);
  return true;
}

bool Memory::Unregister(uint64_t begin) {
  const std::scoped_lock lock(mutex_);
  const auto found = std::ranges::find(registered_, begin, &Range::begin);
  if (found == registered_.end()) return false;
  if (std::ranges::any_of(under_way_, [&](const Copy& c) { return c.host.Meets(*found); })) {
    Note("a registration ended while a copy of its memory was under way");
  }
  registered_.erase(found);
  return true;
}

size_t Memory::registered() {
  const std::scoped_lock lock(mutex_);
  return registered_.size();
}

size_t Memory::registered_bytes() {
  const std::scoped_lock lock(mutex_);
  size_t bytes = 0;
  for (const Range& range : registered_) bytes += range.size;
  return bytes;
}

bool Memory::Begin(const Copy& copy, std::list<Copy>::iterator* under_way) {
  const std::scoped_lock lock(mutex_);
  ++copies_;
  if (FindLocked(copy.device) == nullptr) {
    Note("a copy was enqueued of device memory that is not allocated");
    return false;
  }
  if (std::ranges::none_of(registered_, [&](const Range& r) { return r.Contains(copy.host); })) {
    Note("a copy was enqueued of host memory that is not registered");
  }
  *under_way = under_way_.insert(under_way_.end(), copy);
  return true;
}

void Memory::End(std::list<Copy>::iterator under_way) {
  const std::scoped_lock lock(mutex_);
  under_way_.erase(under_way);
}

uint64_t Memory::copies() {
  const std::scoped_lock lock(mutex_);
  return copies_;
}

}  // namespace fake_cuda
