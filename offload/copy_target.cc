#include "offload/copy_target.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>

#include "base/file_lock.h"

namespace penstock::offload {

Error CopyTarget::Taken(const std::string& path) {
  return MakeError(ErrorCode::kInvalidArgument, "{} is there already, and is not replaced", path);
}

Result<CopyTarget> CopyTarget::Create(const std::string& path) {
  const auto [parent, name] = SplitPath(path);
  PENSTOCK_ASSIGN(Folder folder, Folder::Open(parent));
  PENSTOCK_ASSIGN(const FolderEntry entry, folder.Look(name));
  if (entry.kind != FolderEntry::Kind::kNone) return Taken(path);
  const std::string unfinished = UnfinishedCopy(name);
  PENSTOCK_ASSIGN(UnsharedFd fd, UnsharedFd::Open([&folder, &unfinished] {
                    return folder.OpenFile(unfinished, O_RDWR | O_CREAT | O_EXCL, 0600);
                  }));
  CopyTarget target(std::move(folder), name, std::move(fd));
  PENSTOCK_TRY(LockFile(target.fd_.get(), true, target.temporary()));
  return target;
}

CopyTarget::~CopyTarget() {
  if (kept_) return;
  const Result<FileId> own = IdOf(fd_.get(), temporary());
  if (!own.ok()) return;
  static_cast<void>(folder_.RemoveFile(finished_ ? name_ : UnfinishedCopy(name_), *own));
  if (finished_) static_cast<void>(folder_.Sync());
}

Result<dev_t> CopyTarget::FileSystem() const {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) return ErrnoError(errno, "looking at " + temporary());
  return info.st_dev;
}

Result<Bytes> CopyTarget::Free() const {
  struct statvfs drive {};
  if (::fstatvfs(fd_.get(), &drive) != 0) return ErrnoError(errno, "looking at " + temporary());
  return Bytes{drive.f_frsize} * drive.f_bavail;
}

bool CopyTarget::Clone(int from) { return ::ioctl(fd_.get(), FICLONE, from) == 0; }

Status CopyTarget::PunchHole(FileOffset offset, Bytes size) {
  int result = 0;
  do {
    result = ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                         static_cast<off_t>(offset.value), static_cast<off_t>(size.value));
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno == EOPNOTSUPP) return {};
  return ErrnoError(errno, fmt::format("freeing {} of {}", ToString(size), path()));
}

Status CopyTarget::Resize(Bytes size) {
  if (::ftruncate(fd_.get(), static_cast<off_t>(size.value)) == 0) return {};
  return ErrnoError(errno, "sizing " + temporary());
}

Status CopyTarget::Reserve(FileOffset offset, Bytes size) {
  int result = 0;
  do {
    result =
        ::fallocate(fd_.get(), 0, static_cast<off_t>(offset.value), static_cast<off_t>(size.value));
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno == EOPNOTSUPP) return {};
  return ErrnoError(errno, fmt::format("reserving {} for {}", ToString(size), path()));
}

Status CopyTarget::Write(FileOffset offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t n =
        ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset.value));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return ErrnoError(errno, fmt::format("writing {} at offset {}", temporary(), offset.value));
    }
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset = offset + Bytes{static_cast<uint64_t>(n)};
  }
  return {};
}

Result<aio::File> CopyTarget::Reopen() const {
  return aio::File::Reopen(fd_.get(), temporary(), /*writable=*/true);
}

Status CopyTarget::Sync() {
  if (::fdatasync(fd_.get()) == 0) return {};
  return ErrnoError(errno, "synchronising " + temporary());
}

Status CopyTarget::Finish() {
  PENSTOCK_TRY(folder_.Rename(UnfinishedCopy(name_), name_));
  finished_ = true;
  return folder_.Sync();
}

}  // namespace penstock::offload
