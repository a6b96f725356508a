// Holds requests that wait to be cut into blocks, and decides which block goes next.
//
// Not thread-safe: it belongs to one IoLoop. It shares the requests with its callers and with the
// blocks cut from them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "aio/aio.h"
#include "aio/block_split.h"
#include "aio/ticket_state.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock::aio {

/// A request between Submit and its completion; tickets hold on to it for its state.
struct PendingRequest {
  Request request;
  Ticket::State ticket;
  uint64_t sequence = 0;     ///< number in the order of Submit
  Status outcome;            ///< the first failure
  BlockPlan plan;            ///< set by Push
  Bytes cut;                 ///< bytes that were handed out as blocks
  uint32_t open_blocks = 0;  ///< blocks that were handed out and have not finished
};

/// A part of a request, and how far it is.
struct Block {
  std::shared_ptr<PendingRequest> request;
  Bytes begin;  ///< relative to the request
  Bytes size;
  bool buffered = false;  ///< through the page cache (see aio/block_split.h)
  Bytes transferred;
  int attempts = 0;       ///< transient failures since the last progress
  bool in_drive = false;  ///< its result is awaited
};

class RequestQueue {
 public:
  /// `places`: blocks that the drive has at most.
  explicit RequestQueue(Bytes block_size, int places = 1)
      : block_size_(block_size), write_back_places_(places / 2) {}

  /// Precondition: the request is valid.
  void Push(std::shared_ptr<PendingRequest> request);
  bool empty() const;
  /// Returns the next block: of the oldest request of the highest class, or of the oldest request
  /// of a lower class that kStarvationBound blocks have passed. Where state reads are that class,
  /// of the oldest write-back, if it is a write, while these have less than half of the places.
  /// Precondition: not empty.
  Block Cut();
  /// Gives back the place of a block that was cut.
  void GiveBack(const Block& block);
  /// Forgets the uncut rest of a request that failed and from which a block was cut.
  void Abandon(const PendingRequest& request);
  /// Forgets every request. Returns those that are not cut completely.
  std::vector<std::shared_ptr<PendingRequest>> TakeAll();

 private:
  size_t ChooseClass() const;

  const Bytes block_size_;
  const int write_back_places_;  ///< places that state reads leave to waiting write-backs
  int write_backs_out_ = 0;      ///< blocks that were cut and not returned
  std::array<std::deque<std::shared_ptr<PendingRequest>>, kPriorityCount> classes_;
  /// Blocks of higher classes that were cut while the class waited.
  std::array<int, kPriorityCount> passed_over_{};
};

}  // namespace penstock::aio
