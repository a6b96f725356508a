#include "train/process/watched_read.h"

#include <memory>
#include <utility>

#include "base/long_work.h"
#include "train/process/log.h"

namespace penstock::train {

std::function<Status(Bytes done, Bytes all)> WatchedRead(const std::string& what,
                                                         const Interrupt& interrupt,
                                                         std::string interrupted) {
  return [work = std::make_shared<LongWork>(what, LogNotice), &interrupt,
          interrupted = std::move(interrupted)](Bytes done, Bytes all) -> Status {
    if (interrupt.requested()) return Error{ErrorCode::kCancelled, interrupted};
    work->Note(static_cast<double>(done.value), static_cast<double>(all.value));
    return {};
  };
}

}  // namespace penstock::train
