#include "aio/libaio_drive.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "base/check.h"

namespace penstock::aio {
namespace {

const char* Reason(int error_number) {
  switch (error_number) {
    case ENOSYS:
      return "this kernel has no AIO";
    case EPERM:
    case EACCES:
      return "it is forbidden here (a seccomp filter)";
    case EAGAIN:
      return "the system has no more contexts of this size; raise fs.aio-max-nr";
    default:
      return "the context cannot be set up";
  }
}

void Prepare(const BlockOperation& block, iocb* entry) {
  const auto offset = static_cast<long long>(block.offset.value);
  switch (block.operation) {
    case Operation::kRead:
      return io_prep_pread(entry, block.fd, block.data.data(), block.data.size(), offset);
    case Operation::kWrite:
      return io_prep_pwrite(entry, block.fd, block.data.data(), block.data.size(), offset);
    case Operation::kSync:
      return io_prep_fdsync(entry, block.fd);
  }
}

}  // namespace

LibaioDrive::LibaioDrive(int queue_depth, bool single_submit)
    : single_submit_(single_submit),
      blocks_(static_cast<size_t>(queue_depth)),
      events_(static_cast<size_t>(queue_depth) + 1) {}

Result<std::unique_ptr<LibaioDrive>> LibaioDrive::Create(int queue_depth, bool single_submit) {
  std::unique_ptr<LibaioDrive> drive(new LibaioDrive(queue_depth, single_submit));
  PENSTOCK_TRY(drive->SetUp());
  return drive;
}

Status LibaioDrive::SetUp() {
  const int result = io_setup(static_cast<int>(events_.size()), &context_);
  if (result < 0) {
    return MakeError(ErrorCode::kUnavailable, "libaio: {}: {}", Reason(-result),
                     ErrnoText(-result));
  }
  wake_fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd_.valid()) return ErrnoError(errno, "libaio: making an eventfd");
  return AwaitWakeups();
}

LibaioDrive::~LibaioDrive() {
  if (context_ != nullptr) io_destroy(context_);
}

Status LibaioDrive::AwaitWakeups() {
  io_prep_poll(&wake_poll_, wake_fd_.get(), POLLIN);
  iocb* entry = &wake_poll_;
  int result = 0;
  do {
    result = io_submit(context_, 1, &entry);
  } while (result == -EINTR || result == -EAGAIN);
  if (result == 1) return {};
  return MakeError(ErrorCode::kUnavailable,
                   "libaio: this kernel cannot poll in a context (that came with 4.18): {}",
                   ErrnoText(-result));
}

void LibaioDrive::Submit(const BlockOperation& block) {
  iocb* entry = &blocks_[block.slot];
  Prepare(block, entry);
  pending_.push_back(entry);
  if (single_submit_) SubmitPending();
}

void LibaioDrive::SubmitPending() {
  size_t taken = 0;
  while (taken < pending_.size()) {
    const int result =
        io_submit(context_, static_cast<long>(pending_.size() - taken), pending_.data() + taken);
    if (result == -EINTR) continue;
    // Short of resources: the rest goes with the next Reap, after others are done.
    if (result == -EAGAIN || result == 0) break;
    if (result > 0) {
      taken += static_cast<size_t>(result);
      in_kernel_ += static_cast<size_t>(result);
      continue;
    }
    // The error is that of the first block of the batch, and none of it was taken.
    ready_.push_back({static_cast<uint32_t>(pending_[taken] - blocks_.data()), result});
    ++taken;
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(taken));
}

void LibaioDrive::Reap(size_t at_least, std::vector<BlockResult>& results) {
  SubmitPending();
  if (!ready_.empty()) at_least = 0;
  results.insert(results.end(), ready_.begin(), ready_.end());
  ready_.clear();
  if (!pending_.empty() && in_kernel_ == 0) {
    // Nothing of ours will end and make room.
    at_least = 0;
    std::this_thread::yield();
  }
  Collect(std::min(at_least, std::max<size_t>(in_kernel_, 1)), results);
}

void LibaioDrive::Collect(size_t at_least, std::vector<BlockResult>& results) {
  const int count = io_getevents(context_, static_cast<long>(at_least),
                                 static_cast<long>(events_.size()), events_.data(), nullptr);
  PENSTOCK_CHECK(count >= 0 || count == -EINTR, "io_getevents: {}", ErrnoText(-count));
  for (int i = 0; i < count; ++i) {
    const io_event& event = events_[static_cast<size_t>(i)];
    if (event.obj == &wake_poll_) {
      eventfd_t wakeups = 0;
      PENSTOCK_CHECK(::eventfd_read(wake_fd_.get(), &wakeups) == 0, "reading from an eventfd: {}",
                     ErrnoText(errno));
      const Status waiting = AwaitWakeups();
      PENSTOCK_CHECK(waiting.ok(), "{}", waiting.error().message);
    } else {
      --in_kernel_;
      results.push_back(
          {static_cast<uint32_t>(event.obj - blocks_.data()), static_cast<int64_t>(event.res)});
    }
  }
}

void LibaioDrive::Wake() {
  const int result = ::eventfd_write(wake_fd_.get(), 1);
  PENSTOCK_CHECK(result == 0, "writing to an eventfd: {}", ErrnoText(errno));
}

}  // namespace penstock::aio
