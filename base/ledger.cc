#include "base/ledger.h"

#include <algorithm>
#include <utility>

namespace penstock {
namespace {

size_t Index(Tier tier) { return static_cast<size_t>(tier); }
size_t Index(MemoryClass memory_class) { return static_cast<size_t>(memory_class); }

template <size_t n>
Bytes Sum(const std::array<Bytes, n>& parts) {
  Bytes sum;
  for (Bytes part : parts) sum += part;
  return sum;
}

}  // namespace

const char* ToString(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return "device";
    case Tier::kHost:
      return "host";
    case Tier::kNvme:
      return "nvme";
  }
  return "?";
}

const char* ToString(MemoryClass memory_class) {
  switch (memory_class) {
    case MemoryClass::kParameters:
      return "parameters";
    case MemoryClass::kGradients:
      return "gradients";
    case MemoryClass::kStates:
      return "states";
    case MemoryClass::kActivations:
      return "activations";
    case MemoryClass::kScratch:
      return "scratch";
  }
  return "?";
}

Reservation::Reservation(Ledger* ledger, Tier tier, MemoryClass memory_class, Bytes size)
    : ledger_(ledger), tier_(tier), class_(memory_class), size_(size) {}

Reservation::Reservation(Reservation&& other) noexcept
    : ledger_(std::exchange(other.ledger_, nullptr)),
      tier_(other.tier_),
      class_(other.class_),
      size_(std::exchange(other.size_, Bytes{})) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  Reservation taken(std::move(other));  // what this one held is given back now, not with `other`
  std::swap(ledger_, taken.ledger_);
  std::swap(tier_, taken.tier_);
  std::swap(class_, taken.class_);
  std::swap(size_, taken.size_);
  return *this;
}

Reservation::~Reservation() {
  if (ledger_ != nullptr) ledger_->Release(tier_, class_, size_);
}

Ledger::Ledger(Bytes device_limit, Bytes host_limit, Bytes nvme_limit)
    : limits_{device_limit, host_limit, nvme_limit} {}

Result<Reservation> Ledger::Charge(Tier tier, MemoryClass memory_class, Bytes size) {
  MutexLock lock(mutex_);
  const Bytes used = Sum(used_[Index(tier)]);
  const Bytes limit = limits_[Index(tier)];
  if (size > limit - used) {
    return MakeError(ErrorCode::kBudget,
                     "{} memory: {} for {} do not fit: {} of {} are taken; raise {}_memory to at "
                     "least {} bytes",
                     ToString(tier), ToString(size), ToString(memory_class), ToString(used),
                     ToString(limit), ToString(tier), (used + size).value);
  }
  used_[Index(tier)][Index(memory_class)] += size;
  peak_[Index(tier)] = std::max(peak_[Index(tier)], used + size);
  return Reservation(this, tier, memory_class, size);
}

void Ledger::Release(Tier tier, MemoryClass memory_class, Bytes size) {
  MutexLock lock(mutex_);
  Bytes& used = used_[Index(tier)][Index(memory_class)];
  PENSTOCK_CHECK(used >= size);
  used -= size;
}

Bytes Ledger::used(Tier tier) const {
  MutexLock lock(mutex_);
  return Sum(used_[Index(tier)]);
}

Bytes Ledger::used(Tier tier, MemoryClass memory_class) const {
  MutexLock lock(mutex_);
  return used_[Index(tier)][Index(memory_class)];
}

Bytes Ledger::peak(Tier tier) const {
  MutexLock lock(mutex_);
  return peak_[Index(tier)];
}

}  // namespace penstock
