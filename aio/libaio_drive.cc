#include "aio/libaio_drive.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "base/check.h"

namespace penstock::aio {
namespace {

constexpr auto kLibaioRefusedPause = std::chrono::milliseconds(1);

const char* ContextRefusal(int error_number) {
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
    return MakeError(ErrorCode::kUnavailable, "libaio: {}: {}", ContextRefusal(-result),
                     ErrnoText(-result));
  }
  wake_fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_fd_.valid()) return ErrnoError(errno, "libaio: making an eventfd");
  if (const int refused = AwaitWakeups(); refused != 0) {
    return MakeError(ErrorCode::kUnavailable,
                     "libaio: this kernel cannot poll in a context (that came with 4.18): {}",
                     ErrnoText(-refused));
  }
  return {};
}

LibaioDrive::~LibaioDrive() {
  if (context_ != nullptr) io_destroy(context_);
}

int LibaioDrive::AwaitWakeups() {
  io_prep_poll(&wake_poll_, wake_fd_.get(), POLLIN);
  iocb* entry = &wake_poll_;
  int result = 0;
  do {
    result = io_submit(context_, 1, &entry);
  } while (result == -EINTR);
  awaits_wakeups_ = result == 1;
  return std::min(result, 0);
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
    // Short of resources: see Reap.
    if (result == -EAGAIN || result == 0) break;
    if (result > 0) {
      taken += static_cast<size_t>(result);
      in_kernel_ += static_cast<size_t>(result);
      continue;
    }
    // The error is that of the first block of the batch, and none of it was taken.
    ready_.push_back({SlotOf(pending_[taken]), result});
    ++taken;
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(taken));
}

void LibaioDrive::Reap(bool wait, std::vector<BlockResult>& results) {
  SubmitPending();
  if (!pending_.empty() && in_kernel_ == 0) {
    // The kernel is short of resources, and nothing of ours will end and make room. Whether to try
    // again is for the engine to say.
    for (const iocb* entry : pending_) ready_.push_back({SlotOf(entry), -EAGAIN});
    pending_.clear();
  }
  if (!ready_.empty()) wait = false;
  results.insert(results.end(), ready_.begin(), ready_.end());
  ready_.clear();
  if (!awaits_wakeups_ && AwaitWakeups() != 0) {
    // Nothing would end the wait when a wakeup comes.
    wait = false;
    std::this_thread::sleep_for(kLibaioRefusedPause);
  }
  Collect(wait, results);
}

void LibaioDrive::Collect(bool wait, std::vector<BlockResult>& results) {
  const int count = io_getevents(context_, wait ? 1 : 0, static_cast<long>(events_.size()),
                                 events_.data(), nullptr);
  PENSTOCK_CHECK(count >= 0 || count == -EINTR, "io_getevents: {}", ErrnoText(-count));
  for (int i = 0; i < count; ++i) {
    const io_event& event = events_[static_cast<size_t>(i)];
    if (event.obj == &wake_poll_) {
      eventfd_t wakeups = 0;
      PENSTOCK_CHECK(::eventfd_read(wake_fd_.get(), &wakeups) == 0, "reading from an eventfd: {}",
                     ErrnoText(errno));
      awaits_wakeups_ = false;
    } else {
      --in_kernel_;
      results.push_back({SlotOf(event.obj), static_cast<int64_t>(event.res)});
    }
  }
}

void LibaioDrive::Wake() {
  const int result = ::eventfd_write(wake_fd_.get(), 1);
  PENSTOCK_CHECK(result == 0, "writing to an eventfd: {}", ErrnoText(errno));
}

}  // namespace penstock::aio
