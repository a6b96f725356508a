#include "aio/closed_loop.h"

#include <utility>

#include "base/check.h"

namespace penstock::aio {
namespace {

/// The part of the file that one direction goes through.
struct Range {
  FileOffset begin;
  Bytes size;
};

Range RangeOf(const ClosedLoop::Options& options, Operation operation) {
  if (options.direction != Direction::kBoth) return {options.begin, options.size};
  const Bytes half = options.block_size * (options.size / options.block_size / 2);
  if (operation == Operation::kRead) return {options.begin, half};
  return {options.begin + half, half};
}

BlockWalk WalkOf(const ClosedLoop::Options& options, Operation operation) {
  const Range range = RangeOf(options, operation);
  return {range.begin, range.size, options.block_size, options.position};
}

}  // namespace

const char* ToString(Direction direction) {
  switch (direction) {
    case Direction::kRead:
      return "read";
    case Direction::kWrite:
      return "write";
    case Direction::kBoth:
      return "both";
  }
  return "?";
}

BlockWalk::BlockWalk(FileOffset begin, Bytes size, Bytes block_size, Bytes position)
    : begin_(begin), blocks_(size / block_size), block_size_(block_size) {
  PENSTOCK_CHECK(blocks_ > 0, "a block of {} in {} bytes", block_size.value, size.value);
  next_ = position / block_size % blocks_;
}

FileOffset BlockWalk::Next() {
  const FileOffset offset = begin_ + block_size_ * next_;
  next_ = (next_ + 1) % blocks_;
  return offset;
}

ClosedLoop::ClosedLoop(Options options)
    : options_(std::move(options)),
      reads_(WalkOf(options_, Operation::kRead)),
      writes_(WalkOf(options_, Operation::kWrite)),
      submitted_at_(static_cast<size_t>(options_.queue_depth)) {
  PENSTOCK_CHECK(options_.block_size * static_cast<uint64_t>(options_.queue_depth) <=
                 Bytes{options_.buffers.size()});
}

Result<ClosedLoop::Outcome> ClosedLoop::Run() {
  start_ = Clock::now();
  for (size_t slot = 0; slot < static_cast<size_t>(options_.queue_depth); ++slot) {
    std::optional<Request> first;
    {
      MutexLock lock(mutex_);
      first = Next(slot, Clock::now());
      if (first) ++in_flight_;
    }
    if (first) options_.engine->Submit(std::move(*first));
  }
  MutexLock lock(mutex_);
  while (in_flight_ > 0) idle_.Wait(mutex_);
  if (!failure_.ok()) return failure_.error();
  outcome_.elapsed = last_completion_ - start_;
  return std::move(outcome_);
}

std::optional<Request> ClosedLoop::Next(size_t slot, Clock::time_point now) {
  if (AtEnd(now)) return std::nullopt;
  const bool read = options_.direction == Direction::kRead ||
                    (options_.direction == Direction::kBoth && submitted_ % 2 == 0);
  if (!read) outcome_.written += options_.block_size;
  submitted_at_[slot] = now;
  ++submitted_;
  return Request{.operation = read ? Operation::kRead : Operation::kWrite,
                 .file = options_.file,
                 .offset = read ? reads_.Next() : writes_.Next(),
                 .buffer = options_.buffers.subspan(slot * options_.block_size.value,
                                                    options_.block_size.value),
                 .on_complete = [this, slot](const Status& status) { OnComplete(slot, status); }};
}

bool ClosedLoop::AtEnd(Clock::time_point now) const {
  if (!failure_.ok() || options_.stop()) return true;
  if (submitted_ == 0) return false;
  return options_.block_size * submitted_ >= options_.limit.bytes ||
         now - start_ >= options_.limit.time;
}

void ClosedLoop::OnComplete(size_t slot, const Status& status) {
  std::optional<Request> next;
  {
    // One lock and one look at the clock serve this block and the next one.
    MutexLock lock(mutex_);
    const Clock::time_point now = Clock::now();
    last_completion_ = now;
    if (status.ok()) {
      outcome_.moved += options_.block_size;
      const std::chrono::duration<double, std::micro> latency = now - submitted_at_[slot];
      outcome_.latencies_us.push_back(latency.count());
    } else if (failure_.ok()) {
      failure_ = status;
    }
    next = Next(slot, now);
    if (!next && --in_flight_ == 0) idle_.NotifyAll();
  }
  // With a next block in flight Run cannot return; without one it may have, and the loop be gone.
  if (next) options_.engine->Submit(std::move(*next));
}

}  // namespace penstock::aio
