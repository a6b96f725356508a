// One range of memory of a fixed size, cut first-fit into aligned pieces: a device's hard limit.
//
// The arena only does the bookkeeping and never touches the memory, so it also works for GPU
// memory. It does not own the range, which must outlive it. All functions may be called from any
// thread. Take and Give walk the list of holes: O(number of holes), which is small if sizes repeat.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "base/mutex.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock::device {

class Arena {
 public:
  /// `base` is aligned to kDeviceAlignment; `limit` bytes from there on are the arena.
  Arena(std::byte* base, Bytes limit);
  /// Everything taken must have been given back.
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Takes the lowest hole that holds `size` (> 0) rounded up to kDeviceAlignment. Errors: kBudget,
  /// naming `what`, the sum and the limit, or the largest hole if the sum would fit.
  Result<std::byte*> Take(Bytes size, const std::string& what) EXCLUDES(mutex_);
  /// Gives a piece back; `data` and `size` as they were at Take.
  void Give(std::byte* data, Bytes size) EXCLUDES(mutex_);

  /// Whether all of [data, data + size) lies in the arena, taken or not.
  bool Contains(const std::byte* data, Bytes size) const;

  Bytes limit() const { return limit_; }
  /// Sums of rounded sizes.
  Bytes used() const EXCLUDES(mutex_);
  Bytes peak() const EXCLUDES(mutex_);

 private:
  Error DoesNotFit(Bytes size, const std::string& what) const REQUIRES(mutex_);
  void AddHole(uint64_t offset, uint64_t size) REQUIRES(mutex_);

  std::byte* const base_;
  const Bytes limit_;
  mutable Mutex mutex_;
  /// Offset -> size; no two holes touch.
  std::map<uint64_t, uint64_t> holes_ GUARDED_BY(mutex_);
  Bytes used_ GUARDED_BY(mutex_);
  Bytes peak_ GUARDED_BY(mutex_);
};

}  // namespace penstock::device
