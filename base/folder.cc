#include "base/folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.h"

namespace penstock {

Status SyncFolder(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError(errno, fmt::format("opening folder {}", path));
  if (::fsync(fd.get()) != 0)
    return ErrnoError(errno, fmt::format("synchronising folder {}", path));
  return {};
}

}  // namespace penstock
