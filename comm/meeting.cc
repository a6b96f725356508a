#include "comm/meeting.h"

#include <algorithm>
#include <cstring>

namespace penstock::comm {
namespace {

/// Copies what `rank` receives. Each rank writes to its own memory, where no other one reads: an
/// all-gather reads a rank's own part, which its owner does not write.
void CopyParts(uint32_t rank, const std::vector<const Exchange*>& exchanges) {
  const Exchange& mine = *exchanges[rank];
  const Bytes part = mine.part;
  if (part == 0_B) return;
  for (size_t sender = 0; sender < exchanges.size(); ++sender) {
    const std::byte* const from = exchanges[sender]->from + (rank * mine.stride).value;
    std::byte* const to = mine.to + (sender * part).value;
    if (from != to) std::memcpy(to, from, part.value);
  }
}

}  // namespace

Meeting::Clock::duration Meeting::TimeOf(const LinkSpeed& link, Bytes part, uint32_t ranks) {
  if (ranks == 1) return {};
  const auto bytes = static_cast<double>(((ranks - 1) * part).value);
  // One GB/s is one byte a nanosecond.
  const double passing_ns = link.gigabytes_per_second > 0 ? bytes / link.gigabytes_per_second : 0;
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double, std::nano>(passing_ns) +
      std::chrono::duration<double>(link.latency_seconds));
}

Status Meeting::Run(uint32_t rank, const Exchange& mine) {
  PENSTOCK_ASSIGN(const Exchanges all, Arrive(rank, mine));
  CopyParts(rank, all);
  return Depart(rank, mine);
}

void Meeting::Leave(uint32_t rank, const Error& why) {
  MutexLock lock(mutex_);
  if (failure_) return;
  failure_ = Failure{.error = why, .rank = rank};
  changed_.NotifyAll();
}

Result<Meeting::Exchanges> Meeting::Arrive(uint32_t rank, const Exchange& mine) {
  MutexLock lock(mutex_);
  CompareWithOthers(rank, mine);
  if (failure_) return ErrorOf(rank, mine);
  present_[rank] = &mine;
  const uint64_t this_one = begun_ + 1;
  if (++arrived_ == present_.size()) Begin(mine.part);
  while (begun_ < this_one && !failure_) changed_.Wait(mutex_);
  if (begun_ == this_one) return present_;
  present_[rank] = nullptr;
  return ErrorOf(rank, mine);
}

void Meeting::CompareWithOthers(uint32_t rank, const Exchange& mine) {
  if (failure_ || arrived_ == 0) return;
  const auto other = std::find_if(present_.begin(), present_.end(),
                                  [](const Exchange* exchange) { return exchange != nullptr; });
  if (SameCall(mine, **other)) return;
  failure_ = Failure{.error = DifferentCalls(rank, ToString(mine),
                                             static_cast<uint32_t>(other - present_.begin()),
                                             ToString(**other))};
  changed_.NotifyAll();
}

void Meeting::Begin(Bytes part) {
  ++begun_;
  arrived_ = 0;
  copying_ = present_.size();
  due_ = Clock::now();
  if (link_) due_ += TimeOf(*link_, part, static_cast<uint32_t>(present_.size()));
  changed_.NotifyAll();
}

Status Meeting::Depart(uint32_t rank, const Exchange& mine) {
  MutexLock lock(mutex_);
  if (--copying_ == 0) {
    std::fill(present_.begin(), present_.end(), nullptr);
    changed_.NotifyAll();
  }
  // A failure does not end this wait: the others, which do not wait, read this rank's memory.
  while (copying_ > 0) changed_.Wait(mutex_);
  while (Clock::now() < due_) {
    if (failure_) return ErrorOf(rank, mine);
    changed_.WaitUntil(mutex_, due_);
  }
  return {};
}

Error Meeting::ErrorOf(uint32_t rank, const Exchange& mine) const {
  if (!failure_->rank || failure_->rank == rank) return failure_->error;
  return MakeError(ErrorCode::kUnavailable, "{}: rank {} has ended: {}", ToString(mine),
                   *failure_->rank, failure_->error.message);
}

}  // namespace penstock::comm
