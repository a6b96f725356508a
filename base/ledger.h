// Pure accounting of memory and drive space: every byte is charged here before it is allocated.
//
// A Ledger holds one limit for each tier and the sums charged against it by class. It owns no
// memory. All functions may be called from any thread.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock {

/// Where bytes live.
enum class Tier { kDevice, kHost, kNvme };
inline constexpr size_t kTierCount = 3;

/// What bytes are for. Classes are taken in this order, and a later class is never held while
/// waiting for an earlier one.
enum class MemoryClass { kParameters, kGradients, kStates, kActivations, kScratch };
inline constexpr size_t kMemoryClassCount = 5;

const char* ToString(Tier tier);
const char* ToString(MemoryClass memory_class);

class Ledger;

/// A charge that is given back when it goes out of scope. Must not outlive its Ledger.
class [[nodiscard]] Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();

  Bytes size() const { return size_; }

 private:
  friend class Ledger;
  Reservation(Ledger* ledger, Tier tier, MemoryClass memory_class, Bytes size);

  Ledger* ledger_ = nullptr;
  Tier tier_ = Tier::kDevice;
  MemoryClass class_ = MemoryClass::kParameters;
  Bytes size_;
};

class Ledger {
 public:
  /// Takes one limit for each tier. Charges never exceed a limit.
  Ledger(Bytes device_limit, Bytes host_limit, Bytes nvme_limit);
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  /// Charges `size` bytes. Errors: kBudget, with the sum, the limit and what is charged already.
  Result<Reservation> Charge(Tier tier, MemoryClass memory_class, Bytes size) EXCLUDES(mutex_);

  Bytes limit(Tier tier) const { return limits_[static_cast<size_t>(tier)]; }
  Bytes used(Tier tier) const EXCLUDES(mutex_);
  Bytes used(Tier tier, MemoryClass memory_class) const EXCLUDES(mutex_);
  /// The largest value that `used(tier)` ever had.
  Bytes peak(Tier tier) const EXCLUDES(mutex_);

 private:
  friend class Reservation;
  void Release(Tier tier, MemoryClass memory_class, Bytes size) EXCLUDES(mutex_);

  using PerClass = std::array<Bytes, kMemoryClassCount>;

  const std::array<Bytes, kTierCount> limits_;
  mutable Mutex mutex_;
  std::array<PerClass, kTierCount> used_ GUARDED_BY(mutex_){};
  std::array<Bytes, kTierCount> peak_ GUARDED_BY(mutex_){};
};

}  // namespace penstock
