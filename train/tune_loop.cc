#include "train/tune_loop.h"

#include <utility>

#include "base/check.h"

namespace penstock::train {
namespace {

/// The part of the file that one direction goes through.
struct Range {
  FileOffset begin;
  Bytes size;
};

Range RangeOf(const ClosedLoop::Options& options, aio::Operation operation) {
  const Bytes size = options.file->size();
  if (options.direction != Direction::kBoth) return {FileOffset{}, size};
  const Bytes half{size.value / 2 / options.block_size.value * options.block_size.value};
  if (operation == aio::Operation::kRead) return {FileOffset{}, half};
  return {FileOffset{half.value}, half};
}

BlockWalk WalkOf(const ClosedLoop::Options& options, aio::Operation operation) {
  const Range range = RangeOf(options, operation);
  return {range.begin, range.size, options.block_size, options.file->position};
}

}  // namespace

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
      reads_(WalkOf(options_, aio::Operation::kRead)),
      writes_(WalkOf(options_, aio::Operation::kWrite)),
      submitted_at_(static_cast<size_t>(options_.queue_depth)) {
  PENSTOCK_CHECK(options_.block_size * static_cast<uint64_t>(options_.queue_depth) <=
                 Bytes{options_.file->buffers().size()});
}

Result<ClosedLoop::Outcome> ClosedLoop::Run() {
  start_ = Clock::now();
  for (size_t slot = 0; slot < static_cast<size_t>(options_.queue_depth); ++slot) Launch(slot);
  MutexLock lock(mutex_);
  while (in_flight_ > 0) idle_.Wait(mutex_);
  options_.file->position += options_.block_size * submitted_;
  options_.file->written += options_.block_size * written_;
  if (!failure_.ok()) return failure_.error();
  outcome_.elapsed = last_completion_ - start_;
  return std::move(outcome_);
}

void ClosedLoop::Launch(size_t slot) {
  aio::Request request;
  {
    MutexLock lock(mutex_);
    const Clock::time_point now = Clock::now();
    if (AtEnd(now)) return;
    request = NextRequest(slot);
    submitted_at_[slot] = now;
    ++submitted_;
    ++in_flight_;
  }
  request.on_complete = [this, slot](const Status& status) { OnComplete(slot, status); };
  options_.engine->Submit(std::move(request));
}

bool ClosedLoop::AtEnd(Clock::time_point now) const {
  return !failure_.ok() || options_.block_size * submitted_ >= options_.limit.bytes ||
         now - start_ >= options_.limit.time || options_.stop();
}

aio::Request ClosedLoop::NextRequest(size_t slot) {
  const bool read = options_.direction == Direction::kRead ||
                    (options_.direction == Direction::kBoth && submitted_ % 2 == 0);
  if (!read) ++written_;
  return {.operation = read ? aio::Operation::kRead : aio::Operation::kWrite,
          .file = &options_.file->file(),
          .offset = read ? reads_.Next() : writes_.Next(),
          .buffer = options_.file->buffers().subspan(slot * options_.block_size.value,
                                                     options_.block_size.value)};
}

void ClosedLoop::OnComplete(size_t slot, const Status& status) {
  {
    MutexLock lock(mutex_);
    last_completion_ = Clock::now();
    if (status.ok()) {
      outcome_.moved += options_.block_size;
      const std::chrono::duration<double, std::micro> latency =
          last_completion_ - submitted_at_[slot];
      outcome_.latencies_us.push_back(latency.count());
    } else if (failure_.ok()) {
      failure_ = status;
    }
  }
  Launch(slot);
  // Only now: while this block counts, Run cannot return and take the loop away.
  MutexLock lock(mutex_);
  if (--in_flight_ == 0) idle_.NotifyAll();
}

}  // namespace penstock::train
