#include "aio/uring_drive.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "aio/block_transfer.h"
#include "aio/polled_queues.h"
#include "base/check.h"
#include "base/cpu_set.h"

namespace penstock::aio {
namespace {

constexpr uint64_t kWakeTag = UINT64_MAX;

constexpr unsigned kPollerIdleMs = 50;
constexpr auto kUringRefusedPause = std::chrono::milliseconds(1);

int MakeRing(const UringDrive::Options& options, unsigned flags, io_uring* ring) {
  io_uring_params params{};
  params.flags = flags;
  if (options.iopoll) params.flags |= IORING_SETUP_IOPOLL;
  if (options.sqpoll) {
    params.flags |= IORING_SETUP_SQPOLL;
    params.sq_thread_idle = kPollerIdleMs;
    if (!options.cpus.empty()) {
      // It can be bound to one CPU; the last, as the I/O thread is likely to start on the first.
      params.flags |= IORING_SETUP_SQ_AFF;
      params.sq_thread_cpu = static_cast<unsigned>(options.cpus.back());
    }
  }
  // One entry more than blocks: the read of the eventfd.
  return io_uring_queue_init_params(static_cast<unsigned>(options.queue_depth) + 1, ring, &params);
}

/// The ring with the flags that the kernel knows: deferred task work from 6.1 on, task work without
/// interrupts from 5.19 on. It refuses both if its own thread submits.
int MakeBestRing(const UringDrive::Options& options, io_uring* ring) {
  int result = -EINVAL;
  if (!options.plain_ring && !options.sqpoll) {
    for (const unsigned flags :
         {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_COOP_TASKRUN}) {
      result = MakeRing(options, flags, ring);
      if (result != -EINVAL) return result;
    }
  }
  return MakeRing(options, 0, ring);
}

const char* RingRefusal(int error_number) {
  switch (error_number) {
    case ENOSYS:
      return "this kernel has no io_uring";
    case EPERM:
    case EACCES:
      return "it is forbidden here (kernel.io_uring_disabled, or a seccomp filter)";
    case ENOMEM:
      return "the memlock limit is too low for the ring (ulimit -l)";
    default:
      return "the ring cannot be set up";
  }
}

void Prepare(const BlockOperation& block, int fd, std::optional<int> buffer, io_uring_sqe* entry) {
  void* data = block.data.data();
  const auto size = static_cast<unsigned>(block.data.size());
  const uint64_t offset = block.offset.value;
  if (block.operation == Operation::kSync) {
    io_uring_prep_fsync(entry, fd, IORING_FSYNC_DATASYNC);
  } else if (block.operation == Operation::kRead) {
    if (buffer) return io_uring_prep_read_fixed(entry, fd, data, size, offset, *buffer);
    io_uring_prep_read(entry, fd, data, size, offset);
  } else {
    if (buffer) return io_uring_prep_write_fixed(entry, fd, data, size, offset, *buffer);
    io_uring_prep_write(entry, fd, data, size, offset);
  }
}

}  // namespace

Result<std::unique_ptr<UringDrive>> UringDrive::Create(const Options& options) {
  std::unique_ptr<UringDrive> drive(new UringDrive(options));
  PENSTOCK_TRY(drive->SetUp(options));
  return drive;
}

Status UringDrive::SetUp(const Options& options) {
  const int result = MakeBestRing(options, &ring_);
  // No other engine needs fewer files.
  if (result == -EMFILE) return ErrnoError(EMFILE, "io_uring: setting up the ring");
  if (result < 0) {
    return MakeError(ErrorCode::kUnavailable, "io_uring{}{}: {}: {}",
                     options.sqpoll ? " with sqpoll" : "", options.iopoll ? " with iopoll" : "",
                     RingRefusal(-result), ErrnoText(-result));
  }
  ring_exists_ = true;
  // A child of a fork has neither the descriptor nor the memory of the ring.
  ring_fd_ = UnsharedFd(UniqueFd(ring_.ring_fd));
  (void)io_uring_ring_dontfork(&ring_);
  PENSTOCK_TRY(CheckOperations());
  // Available from 5.18 on; saves the look-up of the ring in every call.
  (void)io_uring_register_ring_fd(&ring_);
  registrations_.emplace(&ring_);
  if (!options.cpus.empty()) {
    const CpuSet set(options.cpus);
    // Kernels before 5.14 cannot say where these helpers run, and leave them anywhere.
    (void)io_uring_register_iowq_aff(&ring_, set.bytes(), set.data());
  }
  wake_fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
  if (!wake_fd_.valid()) return ErrnoError(errno, "io_uring: making an eventfd");
  if (!iopoll_) ReadWakeups();
  return {};
}

Status UringDrive::CheckOperations() {
  io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
  const bool supported = probe != nullptr &&
                         io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                         io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
  io_uring_free_probe(probe);
  if (sqpoll_ && (ring_.features & IORING_FEAT_SQPOLL_NONFIXED) == 0) {
    return MakeError(
        ErrorCode::kUnavailable,
        "io_uring with sqpoll: this kernel serves registered files only with it (others "
        "came with 5.11)");
  }
  if (supported) return {};
  return MakeError(
      ErrorCode::kUnavailable,
      "io_uring: this kernel lacks its read and write operations (they came with 5.6)");
}

UringDrive::~UringDrive() {
  static_cast<void>(ring_fd_.Release());
  if (ring_exists_) io_uring_queue_exit(&ring_);
}

io_uring_sqe* UringDrive::NextEntry() {
  for (;;) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry != nullptr) return entry;
    // The polling thread gives entries back after their completions.
    PENSTOCK_CHECK(sqpoll_, "more blocks than the queue depth were submitted");
    io_uring_submit(&ring_);
    io_uring_sqring_wait(&ring_);
  }
}

void UringDrive::ReadWakeups() {
  io_uring_sqe* entry = NextEntry();
  io_uring_prep_read(entry, wake_fd_.get(), &wakeups_, sizeof(wakeups_), 0);
  io_uring_sqe_set_data64(entry, kWakeTag);
}

void UringDrive::AwaitWakeup() {
  pollfd waiting{.fd = wake_fd_.get(), .events = POLLIN, .revents = 0};
  if (::poll(&waiting, 1, -1) <= 0) return;
  const ssize_t count = ::read(wake_fd_.get(), &wakeups_, sizeof(wakeups_));
  PENSTOCK_CHECK(count == sizeof(wakeups_) || errno == EINTR, "reading from an eventfd: {}",
                 ErrnoText(errno));
}

void UringDrive::Submit(const BlockOperation& block) {
  if (iopoll_ && (block.operation == Operation::kSync || block.alignment == 1_B)) {
    ready_.push_back({block.slot, Transfer(block)});
    return;
  }
  io_uring_sqe* entry = NextEntry();
  const std::optional<int> file = registrations_->FileIndex(block.fd);
  Prepare(block, file.value_or(block.fd), registrations_->BufferIndex(block.data), entry);
  if (file) io_uring_sqe_set_flags(entry, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(entry, block.slot);
  ++in_ring_;
  if (single_submit_) Enter(false);
}

int UringDrive::TryToEnter(bool wait) {
  if (sqpoll_) {
    const int result = io_uring_submit(&ring_);
    if (result < 0 || !wait || io_uring_cq_ready(&ring_) > 0) return result;
  }
  return wait ? io_uring_submit_and_wait(&ring_, 1) : io_uring_submit_and_get_events(&ring_);
}

bool UringDrive::Enter(bool wait) {
  const int result = TryToEnter(wait);
  if (result >= 0 || result == -EINTR) return true;
  // The kernel is short of resources. Anything else means that the ring itself is broken, with
  // buffers in it.
  PENSTOCK_CHECK(result == -EAGAIN || result == -EBUSY, "io_uring_enter: {}", ErrnoText(-result));
  if (!sqpoll_) TakeBack();
  // Nothing else would keep the caller from asking again at once.
  if (ready_.empty()) std::this_thread::sleep_for(kUringRefusedPause);
  return sqpoll_;
}

/// Takes what the kernel refused out of the ring. Its blocks count as tried: whether to try again
/// is for the engine to say.
void UringDrive::TakeBack() {
  io_uring_sq& queue = ring_.sq;
  const unsigned head = *queue.khead;
  bool awaited_wakeup = false;
  for (unsigned i = head; i != queue.sqe_tail; ++i) {
    const uint64_t tag = queue.sqes[i & queue.ring_mask].user_data;
    if (tag == kWakeTag) {
      awaited_wakeup = true;
      continue;
    }
    --in_ring_;
    ready_.push_back({static_cast<uint32_t>(tag), -EAGAIN});
  }
  queue.sqe_head = queue.sqe_tail = head;
  *queue.ktail = head;
  if (awaited_wakeup) ReadWakeups();
}

void UringDrive::Reap(bool wait, std::vector<BlockResult>& results) {
  wait = wait && ready_.empty();
  if (iopoll_ && in_ring_ == 0) {
    if (wait) AwaitWakeup();
  } else {
    Enter(wait);
    Collect(results);
  }
  results.insert(results.end(), ready_.begin(), ready_.end());
  ready_.clear();
}

void UringDrive::Collect(std::vector<BlockResult>& results) {
  std::array<io_uring_cqe*, 64> completions;
  unsigned count = 0;
  while ((count = io_uring_peek_batch_cqe(&ring_, completions.data(), completions.size())) > 0) {
    for (unsigned i = 0; i < count; ++i) {
      const io_uring_cqe& completion = *completions[i];
      if (completion.user_data == kWakeTag) {
        const int result = completion.res;
        PENSTOCK_CHECK(result == sizeof(wakeups_) || result == -EINTR || result == -EAGAIN,
                       "reading from an eventfd through the ring: {}", result);
        ReadWakeups();
      } else {
        --in_ring_;
        results.push_back({static_cast<uint32_t>(completion.user_data), completion.res});
      }
    }
    io_uring_cq_advance(&ring_, count);
  }
}

void UringDrive::Wake() {
  const uint64_t one = 1;
  ssize_t written = 0;
  do {
    written = ::write(wake_fd_.get(), &one, sizeof(one));
  } while (written < 0 && errno == EINTR);
  PENSTOCK_CHECK(written == sizeof(one), "writing to an eventfd: {}", ErrnoText(errno));
}

Result<std::string> UringDrive::RegisterBuffers(std::span<const std::span<std::byte>> memory) {
  return registrations_->RegisterBuffers(memory);
}

Status UringDrive::RegisterFile(const File& file) {
  if (iopoll_ && file.alignment() > 1_B && !HasPolledQueues(file.fd()).value_or(true)) {
    return MakeError(ErrorCode::kUnavailable,
                     "iopoll on {}: its drive has no polled queues (for nvme the module parameter "
                     "poll_queues); switch iopoll off",
                     file.path());
  }
  registrations_->AddFile(file.fd());
  registrations_->AddFile(file.buffered_fd());
  return {};
}

void UringDrive::UnregisterFile(int fd) {
  // Blocks that are prepared name the file by its place.
  while (io_uring_sq_ready(&ring_) > 0 && Enter(false)) continue;
  registrations_->RemoveFile(fd);
}

}  // namespace penstock::aio
