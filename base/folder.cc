#include "base/folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/unique_fd.h"

namespace penstock {

Status SyncFolder(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError(errno, fmt::format("opening folder {}", path));
  if (::fsync(fd.get()) != 0)
    return ErrnoError(errno, fmt::format("synchronising folder {}", path));
  return {};
}

Result<std::vector<std::string>> MakeFolders(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::string> made;
  for (fs::path missing = fs::absolute(path, error).lexically_normal();
       !missing.empty() && !fs::exists(missing, error); missing = missing.parent_path()) {
    if (missing.has_filename()) made.push_back(missing.string());
  }
  fs::create_directories(path, error);
  if (error) return ErrnoError(error.value(), "creating " + path);
  for (const std::string& folder : made) {
    PENSTOCK_TRY(SyncFolder(fs::path(folder).parent_path().string()));
  }
  return made;
}

}  // namespace penstock
