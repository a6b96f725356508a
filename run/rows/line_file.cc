#include "run/rows/line_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace penstock::train {

Status LineFile::Append(const std::string& line) {
  const std::string text = line + "\n";
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = ::write(fd_.get(), text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int why = errno;
      TakeBack(done);
      return ErrnoError(why, "appending to " + path_);
    }
    done += static_cast<size_t>(written);
  }
  return {};
}

/// The beginning of a line that found no room: the next one must not stand behind it.
void LineFile::TakeBack(size_t bytes) {
  struct stat info {};
  if (bytes == 0 || ::fstat(fd_.get(), &info) != 0) return;
  // If the file cannot be cut now, --resume cuts it.
  [[maybe_unused]] const int cut = ::ftruncate(fd_.get(), info.st_size - static_cast<off_t>(bytes));
}

Status LineFile::Sync() const {
  if (::fdatasync(fd_.get()) != 0) return ErrnoError(errno, "synchronising " + path_);
  return {};
}

bool LineFile::IsAt(const Folder& folder, const std::string& name) const {
  const Result<FolderEntry> there = folder.Look(name);
  const Result<FileId> own = IdOf(fd_.get(), path_);
  if (!there.ok() || !own.ok()) return true;
  return there->kind == FolderEntry::Kind::kFile && there->id == *own;
}

}  // namespace penstock::train
