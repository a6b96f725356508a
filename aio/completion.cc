#include "aio/completion.h"

#include <cerrno>

namespace penstock::aio {
namespace {

const char* Advice(Operation operation, int error_number) {
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
    case EAGAIN:
    case EINTR:
      return "; it was tried again and again";
    default:
      return "";
  }
}

}  // namespace

Classified Classify(Operation operation, Bytes size, Bytes alignment, int64_t result) {
  if (result == -EINTR || result == -EAGAIN) {
    return {.verdict = Verdict::kTransient, .error_number = static_cast<int>(-result)};
  }
  if (result < 0) return {.verdict = Verdict::kFailed, .error_number = static_cast<int>(-result)};
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
  std::string what = fmt::format("{} of {} bytes at offset {} of {}", ToString(request.operation),
                                 size.value, position.value, request.file->path());
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
