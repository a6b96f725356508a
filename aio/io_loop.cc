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

bool IoLoop::has_room() const { return overlap_events_ ? !free_.empty() : in_flight_ == 0; }

void IoLoop::Fill() {
  if (!overlap_events_ && in_flight_ > 0) return;
  for (; !resend_.empty(); resend_.pop_front()) {
    const uint32_t slot = resend_.front();
    // A sibling failed while this one waited: nobody wants its bytes any more.
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
                 .fd = request.file->fd(),
                 .offset = Position(block),
                 .data = request.buffer.subspan(start.value, Remaining(block).value),
                 .alignment = request.file->alignment(),
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
      Classify(request.operation, Remaining(block), request.file->alignment(), result.result);
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
  const bool read = block.request->request.operation == Operation::kRead;
  (read ? stats_.read_bytes : stats_.write_bytes) += block.size.value;
  ++stats_.blocks;
  Close(slot);
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
