#include "aio/thread_drive.h"

#include <utility>

#include "aio/block_transfer.h"

namespace penstock::aio {

void ThreadDrive::Submit(const BlockOperation& block) {
  // No thread is woken yet: the submitting thread reaps next, and takes a block itself.
  MutexLock lock(mutex_);
  work_.push_back(block);
}

void ThreadDrive::Wake() {
  {
    MutexLock lock(mutex_);
    woken_ = true;
    if (waiting_ == 0) return;
  }
  something_to_do_.NotifyOne();
}

std::optional<BlockOperation> ThreadDrive::AwaitBlock(std::optional<Time> deadline) {
  BlockOperation block;
  {
    MutexLock lock(mutex_);
    ++waiting_;
    bool in_time = true;
    while (work_.empty() && !woken_ && in_time) {
      if (deadline) {
        in_time = something_to_do_.WaitUntil(mutex_, *deadline);
      } else {
        something_to_do_.Wait(mutex_);
      }
    }
    --waiting_;
    if (std::exchange(woken_, false) || work_.empty()) return std::nullopt;
    block = work_.front();
    work_.pop_front();
    if (work_.empty() || waiting_ == 0) return block;
  }
  something_to_do_.NotifyOne();
  return block;
}

void ThreadDrive::ReapUntil(std::optional<Time> deadline, std::vector<BlockResult>& results) {
  serving_.AssertHeld();
  const MutexUnlock unlocked(serving_);
  const std::optional<BlockOperation> block = AwaitBlock(deadline);
  if (block) results.push_back({block->slot, Transfer(*block)});
}

}  // namespace penstock::aio
