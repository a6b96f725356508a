// A drive over Linux AIO (io_submit, io_getevents), for machines on which io_uring is forbidden.
//
// The kernel carries out direct I/O asynchronously; a buffered block is done within io_submit.
// Another thread wakes the drive through an eventfd that the context always holds one poll of.
//
// Owns the context and the eventfd. Threads: see aio/drive.h.
#pragma once

#include <libaio.h>

#include <memory>
#include <string>
#include <vector>

#include "aio/drive.h"
#include "base/unique_fd.h"

namespace penstock::aio {

class LibaioDrive final : public Drive {
 public:
  /// `single_submit`: one system call a block instead of one a batch. Errors: kUnavailable if the
  /// kernel has no AIO, forbids it, gives no more contexts or cannot poll in them.
  static Result<std::unique_ptr<LibaioDrive>> Create(int queue_depth, bool single_submit);
  /// Waits for what is in flight.
  ~LibaioDrive() override;

  void Submit(const BlockOperation& block) override;
  void Reap(bool wait, std::vector<BlockResult>& results) override;
  void Wake() override;
  const std::string& name() const override { return name_; }

 private:
  LibaioDrive(int queue_depth, bool single_submit);
  Status SetUp();
  /// Has the context poll the eventfd; 0 or a negative errno.
  int AwaitWakeups();
  uint32_t SlotOf(const iocb* entry) const { return static_cast<uint32_t>(entry - blocks_.data()); }
  void SubmitPending();
  void Collect(bool wait, std::vector<BlockResult>& results);

  const std::string name_ = "libaio";
  const bool single_submit_;
  io_context_t context_ = nullptr;
  UniqueFd wake_fd_;
  iocb wake_poll_{};
  bool awaits_wakeups_ = false;
  std::vector<iocb> blocks_;        ///< indexed by slot
  std::vector<iocb*> pending_;      ///< not taken by the kernel yet
  std::vector<BlockResult> ready_;  ///< results of blocks that the kernel refused
  std::vector<io_event> events_;    ///< room for everything that can be in flight
  size_t in_kernel_ = 0;            ///< blocks
};

}  // namespace penstock::aio
