#include "aio/uring_drive.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/check.h"

namespace penstock::aio {
namespace {

constexpr uint64_t kWakeTag = UINT64_MAX;

int MakeRing(unsigned entries, unsigned flags, io_uring* ring) {
  io_uring_params params{};
  params.flags = flags;
  return io_uring_queue_init_params(entries, ring, &params);
}

std::string ErrorText(int error_number) { return std::generic_category().message(error_number); }

const char* Reason(int error_number) {
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

}  // namespace

Result<std::unique_ptr<UringDrive>> UringDrive::Create(const Options& options) {
  std::unique_ptr<UringDrive> drive(new UringDrive(options.single_submit));
  PENSTOCK_TRY(drive->SetUp(options));
  return drive;
}

Status UringDrive::SetUp(const Options& options) {
  // One entry more than blocks: the read of the eventfd.
  const auto entries = static_cast<unsigned>(options.queue_depth) + 1;
  int result = -EINVAL;
  if (!options.plain_ring) {
    result = MakeRing(entries, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, &ring_);
  }
  if (result == -EINVAL) result = MakeRing(entries, 0, &ring_);
  if (result < 0) {
    return MakeError(ErrorCode::kUnavailable, "io_uring: {}: {}; use the thread engine",
                     Reason(-result), ErrorText(-result));
  }
  ring_exists_ = true;
  PENSTOCK_TRY(CheckOperations());
  wake_fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
  if (!wake_fd_.valid()) return ErrnoError(errno, "io_uring: making an eventfd");
  ReadWakeups();
  return {};
}

Status UringDrive::CheckOperations() {
  io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
  const bool supported = probe != nullptr &&
                         io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                         io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
  io_uring_free_probe(probe);
  if (supported) return {};
  return MakeError(
      ErrorCode::kUnavailable,
      "io_uring: this kernel lacks its read and write operations (they came with 5.6); "
      "use the thread engine");
}

UringDrive::~UringDrive() {
  if (ring_exists_) io_uring_queue_exit(&ring_);
}

io_uring_sqe* UringDrive::NextEntry() {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  PENSTOCK_CHECK(entry != nullptr, "more blocks than the queue depth were submitted");
  return entry;
}

void UringDrive::ReadWakeups() {
  io_uring_sqe* entry = NextEntry();
  io_uring_prep_read(entry, wake_fd_.get(), &wakeups_, sizeof(wakeups_), 0);
  io_uring_sqe_set_data64(entry, kWakeTag);
}

void UringDrive::Submit(const BlockOperation& block) {
  io_uring_sqe* entry = NextEntry();
  const auto size = static_cast<unsigned>(block.data.size());
  switch (block.operation) {
    case Operation::kRead:
      io_uring_prep_read(entry, block.fd, block.data.data(), size, block.offset.value);
      break;
    case Operation::kWrite:
      io_uring_prep_write(entry, block.fd, block.data.data(), size, block.offset.value);
      break;
    case Operation::kSync:
      io_uring_prep_fsync(entry, block.fd, IORING_FSYNC_DATASYNC);
      break;
  }
  io_uring_sqe_set_data64(entry, block.slot);
  if (single_submit_) SubmitAndWait(0);
}

void UringDrive::SubmitAndWait(unsigned at_least) {
  const int result = at_least > 0 ? io_uring_submit_and_wait(&ring_, at_least)
                                  : io_uring_submit_and_get_events(&ring_);
  if (result >= 0) return;
  // The kernel is short of resources or a signal came: what was not taken stays in the ring and
  // goes with the next call. Anything else means that the ring itself is broken, with buffers in
  // it.
  PENSTOCK_CHECK(result == -EINTR || result == -EAGAIN || result == -EBUSY, "io_uring_enter: {}",
                 ErrorText(-result));
  std::this_thread::yield();
}

void UringDrive::Reap(size_t at_least, std::vector<BlockResult>& results) {
  SubmitAndWait(static_cast<unsigned>(at_least));
  std::array<io_uring_cqe*, 64> completions;
  unsigned count = 0;
  while ((count = io_uring_peek_batch_cqe(&ring_, completions.data(), completions.size())) > 0) {
    for (unsigned i = 0; i < count; ++i) {
      const io_uring_cqe& completion = *completions[i];
      if (completion.user_data == kWakeTag) {
        ReadWakeups();
      } else {
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
  PENSTOCK_CHECK(written == sizeof(one), "writing to an eventfd: {}", ErrorText(errno));
}

}  // namespace penstock::aio
