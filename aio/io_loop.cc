#include "aio/io_loop.h"

#include <algorithm>
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
      queue_(options.block_size),
      blocks_(static_cast<size_t>(options.queue_depth)) {
  for (size_t slot = blocks_.size(); slot > 0; --slot) {
    free_.push_back(static_cast<uint32_t>(slot - 1));
  }
}

void IoLoop::Add(std::shared_ptr<PendingRequest> request) {
  if (!request->outcome.ok()) return FinishRequest(*request);
  queue_.Push(std::move(request));
}

void IoLoop::Cancel() {
  for (const std::shared_ptr<PendingRequest>& request : queue_.TakeAll()) {
    MarkCancelled(*request);
    if (request->open_blocks == 0) FinishRequest(*request);
  }
  for (const uint32_t slot : resend_) MarkCancelled(*blocks_[slot].request);
}

bool IoLoop::has_room() const { return overlap_events_ ? !free_.empty() : in_flight_ == 0; }

void IoLoop::Fill() {
  if (!overlap_events_ && in_flight_ > 0) return;
  for (; !resend_.empty(); resend_.pop_front()) {
    const uint32_t slot = resend_.front();
    // It was cancelled, or a sibling failed, while it waited: nobody wants its bytes any more.
    if (blocks_[slot].request->outcome.ok()) {
      Send(slot);
    } else {
      Close(slot);
    }
  }
  while (!free_.empty() && !queue_.empty()) {
    const uint32_t slot = free_.back();
    free_.pop_back();
    blocks_[slot] = queue_.Cut();
    Send(slot);
  }
}

void IoLoop::Send(uint32_t slot) {
  const Block& block = blocks_[slot];
  const Request& request = block.request->request;
  const Bytes start = block.begin + block.transferred;
  ++in_flight_;
  stats_.max_in_flight = std::max(stats_.max_in_flight, static_cast<int>(in_flight_));
  drive_.Submit({.operation = request.operation,
                 .fd = DescriptorOf(block),
                 .offset = Position(block),
                 .data = request.buffer.subspan(start.value, Remaining(block).value),
                 .alignment = AlignmentOf(block),
                 .slot = slot});
}

void IoLoop::Reap() {
  const size_t wanted = overlap_events_ ? 1 : std::max<size_t>(in_flight_, 1);
  results_.clear();
  drive_.Reap(wanted, results_);
  for (const BlockResult& result : results_) Handle(result);
}

void IoLoop::Handle(const BlockResult& result) {
  PENSTOCK_CHECK(result.slot < blocks_.size() && blocks_[result.slot].request != nullptr,
                 "{} reported slot {}, which holds no block", drive_.name(), result.slot);
  --in_flight_;
  const Block& block = blocks_[result.slot];
  const Request& request = block.request->request;
  const Classified classified =
      Classify(request.operation, Remaining(block), AlignmentOf(block), result.result);
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
  resend_.push_back(slot);
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
  const std::shared_ptr<PendingRequest> request = std::move(blocks_[slot].request);
  blocks_[slot].request = nullptr;
  free_.push_back(slot);
  --request->open_blocks;
  const bool all_cut = request->cut.value == request->request.buffer.size();
  if (request->open_blocks == 0 && (all_cut || !request->outcome.ok())) FinishRequest(*request);
}

void IoLoop::FinishRequest(PendingRequest& request) {
  ++stats_.requests;
  if (!request.outcome.ok()) ++stats_.errors;
  finish_(request);
}

}  // namespace penstock::aio
