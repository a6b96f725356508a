#include "aio/completion.h"

#include <cerrno>

namespace penstock::aio {
namespace {

const char* Advice(Operation operation, int error_number) {
  if (operation == Operation::kSync && error_number != EBADF) {
    // The kernel reports a failed write-back once and forgets the pages: a second try would lie.
    return "; what was written since the last sync may be lost; see the kernel log";
  }
  switch (error_number) {
    case EIO:
      return "; see the kernel log for the state of the drive";
    case ENOSPC:
    case EDQUOT:
      return "; free space on its file system or name another path";
    case EBADF:
      return operation == Operation::kWrite ? "; is the file open, and for writing?"
                                            : "; is the file open?";
    case EINVAL:
      return "; does the file system support direct I/O of this alignment?";
    case EOPNOTSUPP:
      return "; iopoll needs O_DIRECT and a drive with polled queues (for nvme the module "
             "parameter "
             "poll_queues); switch it off otherwise";
    case EAGAIN:
    case EINTR:
      return "; it was tried again and again";
    default:
      return "";
  }
}

bool IsTransient(Operation operation, int error_number) {
  return error_number == EINTR || (error_number == EAGAIN && operation != Operation::kSync);
}

}  // namespace

std::string Describe(const Request& request, FileOffset position, Bytes size) {
  if (request.operation == Operation::kSync) {
    return fmt::format("sync of {} (fdatasync)", request.file->path());
  }
  return fmt::format("{} of {} bytes at offset {} of {}", ToString(request.operation), size.value,
                     position.value, request.file->path());
}

std::string Describe(const Request& request) {
  return Describe(request, request.offset, Bytes{request.buffer.size()});
}

Classified Classify(Operation operation, Bytes size, Bytes alignment, int64_t result) {
  if (result < 0) {
    const auto error_number = static_cast<int>(-result);
    return {
        .verdict = IsTransient(operation, error_number) ? Verdict::kTransient : Verdict::kFailed,
        .error_number = error_number};
  }
  const Bytes transferred{static_cast<uint64_t>(result)};
  if (transferred > size) return {.verdict = Verdict::kOverLong, .transferred = transferred};
  if (transferred == size) return {.verdict = Verdict::kFull, .transferred = transferred};
  // Direct I/O ends between two multiples of the alignment only at the end of the file.
  const Bytes whole = alignment * (transferred / alignment);
  if (whole.value > 0) return {.verdict = Verdict::kShort, .transferred = whole};
  if (operation == Operation::kRead) return {.verdict = Verdict::kEndOfFile};
  return {.verdict = Verdict::kTransient, .error_number = EAGAIN};
}

Error DescribeFailure(const Request& request, FileOffset position, Bytes size,
                      const Classified& classified) {
  std::string what = Describe(request, position, size);
  if (size.value != request.buffer.size()) {
    what += fmt::format(" (in a request for {} bytes at {})", request.buffer.size(),
                        request.offset.value);
  }
  if (classified.verdict == Verdict::kEndOfFile) {
    return MakeError(ErrorCode::kIo,
                     "{}: the file ends before; the file shrank, or was never this long", what);
  }
  if (classified.verdict == Verdict::kOverLong) {
    return MakeError(ErrorCode::kIo, "{}: the kernel reports {} bytes, more than were asked for",
                     what, classified.transferred.value);
  }
  Error error = ErrnoError(classified.error_number, what);
  error.message += Advice(request.operation, classified.error_number);
  return error;
}

}  // namespace penstock::aio
