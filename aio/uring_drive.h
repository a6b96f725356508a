// A drive over io_uring: one system call submits a batch and waits for completions.
//
// If the kernel has SINGLE_ISSUER and DEFER_TASKRUN (6.1), the ring is made with them: completions
// are then processed only while the I/O thread waits for them. Another thread wakes it through an
// eventfd on which the ring always holds one read, so waiting costs nothing and polls nothing.
//
// With sqpoll a kernel thread fetches the blocks, and sleeps after 50 ms without any; only waiting
// for a completion is a system call then. An iopoll ring takes direct reads and writes only.
// Buffered blocks and syncs are carried out on the spot. While blocks are in the ring, Reap polls
// for them; otherwise it waits for the eventfd itself.
//
// Owns the ring and the eventfd. Threads: see aio/drive.h. ThreadSanitizer needs no help here: the
// ring is used by one thread, and buffers pass between it and the callers under the engine's locks.
#pragma once

#include <liburing.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/drive.h"
#include "aio/uring_registrations.h"
#include "base/unique_fd.h"
#include "base/unshared_fd.h"

namespace penstock::aio {

class UringDrive final : public Drive {
 public:
  struct Options {
    int queue_depth = kDefaultQueueDepth;
    bool single_submit = false;  ///< one system call a block instead of one a batch
    bool sqpoll = false;
    bool iopoll = false;
    std::vector<int> cpus;    ///< CPUs for the kernel's threads that work for the ring; empty: any
    bool plain_ring = false;  ///< do not ask for the flags of newer kernels
  };

  /// Errors: kUnavailable if the kernel has no io_uring, forbids it or lacks the operations.
  static Result<std::unique_ptr<UringDrive>> Create(const Options& options);
  ~UringDrive() override;

  void Submit(const BlockOperation& block) override;
  void Reap(bool wait, std::vector<BlockResult>& results) override;
  void Wake() override;
  Result<std::string> RegisterBuffers(std::span<const std::span<std::byte>> memory) override;
  Status RegisterFile(const File& file) override;
  void UnregisterFile(int fd) override;
  const std::string& name() const override { return name_; }

 private:
  explicit UringDrive(const Options& options)
      : single_submit_(options.single_submit), sqpoll_(options.sqpoll), iopoll_(options.iopoll) {}
  Status SetUp(const Options& options);
  Status CheckOperations();
  io_uring_sqe* NextEntry();
  void ReadWakeups();
  void AwaitWakeup();
  /// Hands prepared blocks to the kernel, or some of them, and waits for a completion if asked to.
  /// Returns false if the kernel refused and the blocks were taken back.
  bool Enter(bool wait);
  int TryToEnter(bool wait);
  void TakeBack();
  void Collect(std::vector<BlockResult>& results);

  const std::string name_ = "io_uring";
  const bool single_submit_;
  const bool sqpoll_;
  const bool iopoll_;
  bool ring_exists_ = false;
  io_uring ring_{};
  UnsharedFd ring_fd_;  ///< of ring_, which closes it: it keeps the files open that it knows
  std::optional<UringRegistrations> registrations_;
  UniqueFd wake_fd_;
  uint64_t wakeups_ = 0;            ///< the kernel puts the eventfd's count here
  size_t in_ring_ = 0;              ///< blocks
  std::vector<BlockResult> ready_;  ///< results of blocks that the ring no longer has, or never had
};

}  // namespace penstock::aio
