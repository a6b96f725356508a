#include "aio/fault_drive.h"

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <utility>

#include "base/random.h"

namespace penstock::aio {
namespace {

// Independent sequences of random numbers from one seed.
constexpr uint64_t kFaultStream = 1;
constexpr uint64_t kOrderStream = 2;

double Chance(uint32_t bits) { return bits * 0x1p-32; }

Bytes HalfOf(const BlockOperation& block) {
  const Bytes half = block.alignment * (Bytes{block.data.size() / 2} / block.alignment);
  return std::max(half, std::min(block.alignment, Bytes{block.data.size()}));
}

}  // namespace

FaultDrive::FaultDrive(std::unique_ptr<Drive> base, FaultPlan plan, int queue_depth,
                       OnFailedSync on_failed_sync)
    : LayeredDrive(std::move(base)),
      name_(LayeredDrive::name() + " with faults"),
      plan_(std::move(plan)),
      on_failed_sync_(std::move(on_failed_sync)),
      seen_at_(plan_.faults.size()),
      damage_(queue_depth, plan_.on_bad_unit),
      delay_slot_(static_cast<size_t>(queue_depth)) {}

void FaultDrive::ApplyListed(const Fault& fault, uint64_t position, const BlockOperation& block,
                             Fate& fate) const {
  if (position < fault.first_block || position - fault.first_block >= fault.count) return;
  switch (fault.kind) {
    case Fault::Kind::kError:
      fate.error_number = fault.error_number;
      break;
    case Fault::Kind::kShort:
      fate.cut_short = true;
      break;
    case Fault::Kind::kDelay:
      fate.delayed = true;
      break;
    default:
      fate.damage = DamageOf(fault, block);
  }
}

void FaultDrive::ApplyRandom(Operation operation, uint64_t position, Fate& fate) const {
  const auto bits = Philox(plan_.seed, kFaultStream, position);
  if (Chance(bits[0]) < plan_.error_chance) fate.error_number = EIO;
  if (Chance(bits[1]) < plan_.transient_chance) {
    // For a sync only EINTR is transient.
    fate.error_number = (bits[1] & 1) == 0 || operation == Operation::kSync ? EINTR : EAGAIN;
  }
  if (Chance(bits[2]) < plan_.short_chance) fate.cut_short = true;
  if (Chance(bits[3]) < plan_.delay_chance) fate.delayed = true;
}

FaultDrive::Fate FaultDrive::Decide(const BlockOperation& block) {
  const auto index = static_cast<size_t>(block.operation);
  const uint64_t position = std::accumulate(seen_.begin(), seen_.end(), uint64_t{0});
  Fate fate;
  ApplyRandom(block.operation, position, fate);
  for (size_t i = 0; i < plan_.faults.size(); ++i) {
    const Fault& fault = plan_.faults[i];
    const bool damages = IsDamage(fault.kind);
    if (damages && block.operation != Operation::kWrite) continue;
    if (fault.operation && *fault.operation != block.operation) continue;
    if (fault.at && !Holds(block, *fault.at)) continue;
    uint64_t number = fault.operation || damages ? seen_[index] : position;
    if (fault.at) number = seen_at_[i]++;
    ApplyListed(fault, number, block, fate);
  }
  ++seen_[index];
  return fate;
}

void FaultDrive::Submit(const BlockOperation& block) {
  const Fate fate = Decide(block);
  delay_slot_[block.slot] = fate.delayed;
  if (fate.error_number != 0) {
    const bool fails = fate.error_number != EINTR && block.operation == Operation::kSync;
    if (fails && on_failed_sync_) on_failed_sync_(block.fd);
    ready_.push_back({block.slot, -fate.error_number});
    return;
  }
  BlockOperation passed = block;
  if (fate.cut_short) passed.data = block.data.first(HalfOf(block).value);
  Pass(passed, fate);
}

void FaultDrive::Pass(BlockOperation passed, const Fate& fate) {
  if (passed.operation == Operation::kRead && damage_.IsBad(passed)) {
    ready_.push_back({passed.slot, -EIO});
    return;
  }
  if (passed.operation == Operation::kWrite) {
    damage_.Heal(passed);
    if (fate.damage && !damage_.Do(*fate.damage, passed)) {
      ready_.push_back({passed.slot, static_cast<int64_t>(passed.data.size())});
      return;
    }
  }
  ++in_base_;
  base().Submit(passed);
}

void FaultDrive::CollectFromBase(bool wait) {
  std::vector<BlockResult> from_base;
  base().Reap(wait, from_base);
  in_base_ -= from_base.size();
  for (const BlockResult& result : from_base) {
    if (delay_slot_[result.slot]) {
      delayed_.push_back({reported_ + kDelayedBehind, result});
    } else {
      ready_.push_back(result);
    }
  }
}

void FaultDrive::ReleaseDelayed() {
  const bool nothing_else = ready_.empty() && in_base_ == 0;
  std::erase_if(delayed_, [&](const Delayed& delayed) {
    const bool due = nothing_else || reported_ >= delayed.after;
    if (due) ready_.push_back(delayed.result);
    return due;
  });
}

void FaultDrive::Report(std::vector<BlockResult>& results) {
  size_t count = ready_.size();
  if (plan_.reorder && count > 1) {
    // A random choice of at least one, in random order: the front of a partial Fisher-Yates
    // shuffle.
    count = 1 + Philox(plan_.seed, kOrderStream, draws_++)[0] % count;
    for (size_t i = 0; i < count; ++i) {
      const uint32_t bits = Philox(plan_.seed, kOrderStream, draws_++)[0];
      std::swap(ready_[i], ready_[i + bits % (ready_.size() - i)]);
    }
  }
  const auto end = ready_.begin() + static_cast<std::ptrdiff_t>(count);
  results.insert(results.end(), ready_.begin(), end);
  ready_.erase(ready_.begin(), end);
  reported_ += count;
}

void FaultDrive::Reap(bool wait, std::vector<BlockResult>& results) {
  ReleaseDelayed();
  CollectFromBase(wait && ready_.empty());
  ReleaseDelayed();
  Report(results);
}

}  // namespace penstock::aio
