#include "aio/io_loop.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"

namespace penstock::aio {
namespace {

FileOffset Position(const Block& block) {
  return block.request->request.offset + block.begin + block.transferred;
}

Bytes Remaining(const Block& block) { return block.size - block.transferred; }

int DescriptorOf(const Block& block) {
  const File& file = *block.request->request.file;
  return block.buffered ? file.buffered_fd() : file.fd();
}

/// What parts of the block must be multiples of.
Bytes AlignmentOf(const Block& block) {
  return block.buffered ? 1_B : block.request->request.file->alignment();
}

/// Doubles from attempt to attempt, up to a millisecond.
std::chrono::microseconds PauseAfter(int attempts) {
  return std::chrono::microseconds(1 << std::min(attempts, 10));
}

void MarkCancelled(PendingRequest& request) {
  if (!request.outcome.ok()) return;
  request.outcome = MakeError(ErrorCode::kCancelled, "{}: cancelled before the drive had all of it",
                              Describe(request.request));
}

}  // namespace

IoLoop::IoLoop(Drive& drive, const EngineOptions& options, Finish finish)
    : drive_(drive),
      overlap_events_(options.overlap_events),
      finish_(std::move(finish)),
      queue_(options.block_size, options.queue_depth),
      blocks_(static_cast<size_t>(options.queue_depth)) {
  for (size_t slot = blocks_.size(); slot > 0; --slot) {
    free_.push_back(static_cast<uint32_t>(slot - 1));
  }
}

void IoLoop::Add(std::shared_ptr<PendingRequest> request) {
  if (!request->outcome.ok()) return FinishRequest(std::move(request));
  queue_.Push(std::move(request));
}

void IoLoop::Cancel() {
  for (std::shared_ptr<PendingRequest>& request : queue_.TakeAll()) {
    MarkCancelled(*request);
    if (request->open_blocks == 0) FinishRequest(std::move(request));
  }
  ReleaseHeld();
  for (const uint32_t slot : resend_) MarkCancelled(*blocks_[slot].request);
}

bool IoLoop::has_room() const { return overlap_events_ ? !free_.empty() : in_flight_ == 0; }

void IoLoop::Fill() {
  if (!overlap_events_ && in_flight_ > 0) return;
  SendAgain();
  while (!free_.empty() && !queue_.empty()) {
    const uint32_t slot = free_.back();
    free_.pop_back();
    blocks_[slot] = queue_.Cut();
    Send(slot);
  }
  if (in_flight_ > 0 || held_.empty()) return;
  std::this_thread::sleep_for(PauseAfter(blocks_[held_.front()].attempts));
  ReleaseHeld();
  SendAgain();
}

void IoLoop::ReleaseHeld() {
  resend_.insert(resend_.end(), held_.begin(), held_.end());
  held_.clear();
}

void IoLoop::SendAgain() {
  for (; !resend_.empty(); resend_.pop_front()) {
    const uint32_t slot = resend_.front();
    // It was cancelled, or a sibling failed, while it waited: its bytes are no longer needed.
    if (blocks_[slot].request->outcome.ok()) {
      Send(slot);
    } else {
      Close(slot);
    }
  }
}

void IoLoop::Send(uint32_t slot) {
  Block& block = blocks_[slot];
  const Request& request = block.request->request;
  const Bytes start = block.begin + block.transferred;
  block.in_drive = true;
  ++in_flight_;
  stats_.max_in_flight = std::max(stats_.max_in_flight, static_cast<int>(in_flight_));
  drive_.Submit({.operation = request.operation,
                 .fd = DescriptorOf(block),
                 .offset = Position(block),
                 .data = request.buffer.subspan(start.value, Remaining(block).value),
                 .alignment = AlignmentOf(block),
                 .slot = slot,
                 .memory = request.file->memory(),
                 .request = &request});
}

void IoLoop::Reap(std::vector<BlockResult>& results) {
  results.clear();
  drive_.Reap(true, results);
  for (const BlockResult& result : results) Handle(result);
}

void IoLoop::Handle(const BlockResult& result) {
  PENSTOCK_CHECK(result.slot < blocks_.size() && blocks_[result.slot].in_drive,
                 "{} reported slot {}, of which it holds no block", drive_.name(), result.slot);
  --in_flight_;
  Block& block = blocks_[result.slot];
  block.in_drive = false;
  const Request& request = block.request->request;
  const Classified classified =
      Classify(request.operation, Remaining(block), AlignmentOf(block), result.result);
  if (classified.verdict != Verdict::kTransient) ReleaseHeld();
  switch (classified.verdict) {
    case Verdict::kFull:
    case Verdict::kShort:
      return Advance(result.slot, classified);
    case Verdict::kTransient:
      return TryAgain(result.slot, classified);
    case Verdict::kEndOfFile:
    case Verdict::kOverLong:
    case Verdict::kFailed:
      return Fail(result.slot, classified);
  }
}

void IoLoop::Advance(uint32_t slot, const Classified& classified) {
  Block& block = blocks_[slot];
  block.transferred += classified.transferred;
  block.attempts = 0;
  if (classified.verdict == Verdict::kShort) {
    ++stats_.continuations;
    resend_.push_back(slot);
    return;
  }
  Count(block);
  Close(slot);
}

void IoLoop::Count(const Block& block) {
  switch (block.request->request.operation) {
    case Operation::kRead:
      stats_.read_bytes += block.size.value;
      break;
    case Operation::kWrite:
      stats_.write_bytes += block.size.value;
      break;
    case Operation::kSync:
      ++stats_.syncs;
      return;
  }
  ++stats_.blocks;
}

void IoLoop::TryAgain(uint32_t slot, const Classified& classified) {
  Block& block = blocks_[slot];
  if (++block.attempts > kMaxAttempts) return Fail(slot, classified);
  ++stats_.retries;
  if (block.attempts < kPatientAttempts) {
    resend_.push_back(slot);
  } else {
    held_.push_back(slot);
  }
}

void IoLoop::Fail(uint32_t slot, const Classified& classified) {
  const Block& block = blocks_[slot];
  PendingRequest& request = *block.request;
  if (request.outcome.ok()) {
    request.outcome =
        DescribeFailure(request.request, Position(block), Remaining(block), classified);
    queue_.Abandon(request);
  }
  Close(slot);
}

void IoLoop::Close(uint32_t slot) {
  queue_.GiveBack(blocks_[slot]);
  std::shared_ptr<PendingRequest> request = std::move(blocks_[slot].request);
  blocks_[slot].request = nullptr;
  free_.push_back(slot);
  --request->open_blocks;
  const bool all_cut = request->cut == request->plan.size;
  if (request->open_blocks == 0 && (all_cut || !request->outcome.ok())) {
    FinishRequest(std::move(request));
  }
}

void IoLoop::FinishRequest(std::shared_ptr<PendingRequest> request) {
  ++stats_.requests;
  if (!request->outcome.ok()) ++stats_.errors;
  finish_(std::move(request));
}

}  // namespace penstock::aio
