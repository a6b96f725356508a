#include "base/result.h"

#include <cerrno>
#include <system_error>

namespace penstock {
namespace {

ErrorCode CodeOf(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return ErrorCode::kOutOfSpace;
    case ENOENT:
    case ENOTDIR:
    case ESTALE:  // another client of NFS removed what is open here
      return ErrorCode::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return ErrorCode::kPermission;
    case ENOMEM:
      return ErrorCode::kOutOfMemory;
    default:
      return ErrorCode::kIo;
  }
}

/// What to do about the limits of a process, which no message about a file would bring to mind.
const char* Advice(int error_number) {
  switch (error_number) {
    case EFBIG:
      return "; raise the limit of the size of files (ulimit -f), or name a path on a file system "
             "with larger ones";
    case EMFILE:
      return "; raise the limit of open files (ulimit -n)";
    default:
      return "";
  }
}

}  // namespace

std::string ErrnoText(int error_number) { return std::generic_category().message(error_number); }

Error ErrnoError(int error_number, const std::string& what) {
  return Error{CodeOf(error_number), what + ": " + ErrnoText(error_number) + Advice(error_number)};
}

}  // namespace penstock
