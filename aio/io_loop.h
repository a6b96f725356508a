// The policy of every engine, without threads: decides which blocks go to the drive, and what
// follows from their results.
//
// Cuts requests into blocks, keeps at most `queue_depth` of them in the drive, retries transient
// failures with a bound, continues short transfers, and hands each request to `finish` exactly
// once.
//
// Threads: one at a time, under the serving mutex of its engine; within Reap the drive may release
// that, and another thread may enter (aio/drive.h). It uses the drive, which must outlive it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "aio/aio.h"
#include "aio/completion.h"
#include "aio/drive.h"
#include "aio/request_queue.h"

namespace penstock::aio {

/// How often a block is tried again without any progress before its request fails.
inline constexpr int kMaxAttempts = 32;
/// From this attempt on a block waits for another one to end, or for a moment if there is none, so
/// that the kernel gets back what it is short of.
inline constexpr int kPatientAttempts = 4;

class IoLoop {
 public:
  using Finish = std::function<void(std::shared_ptr<PendingRequest>)>;

  /// It uses block_size, queue_depth and overlap_events of `options`.
  IoLoop(Drive& drive, const EngineOptions& options, Finish finish);

  /// Takes a request over. A request whose outcome is a failure already is finished at once.
  void Add(std::shared_ptr<PendingRequest> request);
  /// Gives the drive as many blocks as it may have.
  void Fill();
  /// Waits for results (or for a Wake of the drive) and acts on them. `results` is room of the
  /// calling thread's.
  void Reap(std::vector<BlockResult>& results);
  /// Fails blocks that the drive does not have yet with kCancelled; blocks that it has are awaited
  /// as usual. The next Fill drops blocks that wait to be sent again.
  void Cancel();

  bool idle() const { return queue_.empty() && free_.size() == blocks_.size(); }
  /// Whether a request that arrived now would get a block to the drive at once.
  bool has_room() const;
  /// The sums so far, of requests that `finish` has seen or is seeing.
  const EngineStats& stats() const { return stats_; }

 private:
  void SendAgain();
  void Send(uint32_t slot);
  void Handle(const BlockResult& result);
  void Advance(uint32_t slot, const Classified& classified);
  void Count(const Block& block);
  void TryAgain(uint32_t slot, const Classified& classified);
  /// Lets the blocks that are held back go to the drive again.
  void ReleaseHeld();
  void Fail(uint32_t slot, const Classified& classified);
  /// Frees the slot, and finishes the request when this was its last block.
  void Close(uint32_t slot);
  void FinishRequest(std::shared_ptr<PendingRequest> request);

  Drive& drive_;
  const bool overlap_events_;
  const Finish finish_;
  RequestQueue queue_;
  std::vector<Block> blocks_;    ///< indexed by slot
  std::vector<uint32_t> free_;   ///< slots without a block
  std::deque<uint32_t> resend_;  ///< slots whose block is sent to the drive again
  std::vector<uint32_t> held_;   ///< slots whose block is sent again after another one, or later
  size_t in_flight_ = 0;         ///< blocks in the drive
  EngineStats stats_;
};

}  // namespace penstock::aio
