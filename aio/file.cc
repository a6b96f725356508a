#include "aio/file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/file_extents.h"

namespace penstock::aio {
namespace {

constexpr Bytes kUsualAlignment = 4_KiB;
constexpr Bytes kAllocatedUnit = 512_B;  // unit of st_blocks on every file system

int OpenRetrying(const char* path, int flags, mode_t mode = 0) {
  int fd = -1;
  do {
    fd = ::open(path, flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

/// The logical sector size of the block device `fd`, if it is one.
std::optional<Bytes> SectorSize(int fd) {
  int size = 0;
  if (::ioctl(fd, BLKSSZGET, &size) != 0 || size <= 0) return std::nullopt;
  return Bytes{static_cast<uint64_t>(size)};
}

/// What statx says about direct I/O on the file, if the kernel and the file system say anything.
std::optional<Bytes> ReportedAlignment([[maybe_unused]] int fd) {
#ifdef STATX_DIOALIGN
  struct statx info {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0 && info.stx_dio_offset_align > 0) {
    return Bytes{std::max(info.stx_dio_mem_align, info.stx_dio_offset_align)};
  }
#endif
  return std::nullopt;
}

Bytes DirectAlignment(int fd) {
  if (const auto reported = ReportedAlignment(fd)) return *reported;
  struct stat info {};
  if (::fstat(fd, &info) != 0) return kUsualAlignment;
  if (S_ISBLK(info.st_mode)) return SectorSize(fd).value_or(kUsualAlignment);
  const std::string device =
      fmt::format("/dev/block/{}:{}", major(info.st_dev), minor(info.st_dev));
  const UniqueFd device_fd(OpenRetrying(device.c_str(), O_RDONLY));
  if (!device_fd.valid()) return kUsualAlignment;
  return SectorSize(device_fd.get()).value_or(kUsualAlignment);
}

Error NoDirectIo(const std::string& path) {
  return MakeError(ErrorCode::kUnavailable,
                   "opening {} with O_DIRECT: its file system does not support direct I/O; name a "
                   "path on one that does (ext4, xfs)",
                   path);
}

Result<UniqueFd> OpenExisting(const std::string& path, const File::OpenOptions& options) {
  const int flags = (options.writable ? O_RDWR : O_RDONLY) | (options.direct ? O_DIRECT : 0);
  UniqueFd fd(OpenRetrying(path.c_str(), flags));
  if (fd.valid()) return fd;
  const int error_number = errno;
  if (error_number == EINVAL && options.direct) return NoDirectIo(path);
  const char* purpose = options.writable ? "reading and writing" : "reading";
  return ErrnoError(error_number, fmt::format("opening {} for {}", path, purpose));
}

/// Creates an empty file. Apart from opening it, since an open that fails for want of O_DIRECT may
/// leave the file behind.
Status CreateEmpty(const std::string& path) {
  const UniqueFd fd(OpenRetrying(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0600));
  if (fd.valid()) return {};
  const int error_number = errno;
  Error error = ErrnoError(error_number, fmt::format("creating {}", path));
  if (error_number == EEXIST) error.message += "; remove it or name another path";
  return error;
}

/// Removes the file at a path unless Keep is called, as a file that could not be opened as asked
/// must not stay behind.
class CreatedFile {
 public:
  explicit CreatedFile(std::string path) : path_(std::move(path)) {}
  ~CreatedFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  CreatedFile(const CreatedFile&) = delete;
  CreatedFile& operator=(const CreatedFile&) = delete;

  void Keep() { path_.clear(); }

 private:
  std::string path_;
};

/// Returns the free space for this user on the file system of `fd`; none if it does not say.
std::optional<Bytes> FreeSpace(int fd) {
  struct statvfs info {};
  if (::fstatvfs(fd, &info) != 0 || info.f_blocks == 0) return std::nullopt;
  return Bytes{static_cast<uint64_t>(info.f_bavail) * info.f_frsize};
}

Error NoSpace(const std::string& path, Bytes size, Bytes missing, std::optional<Bytes> free) {
  return MakeError(ErrorCode::kOutOfSpace,
                   "reserving {} for {}: {} bytes more are needed and {} are free on its file "
                   "system; free space or name another path",
                   ToString(size), path, missing.value,
                   free ? std::to_string(free->value) : std::string("not enough"));
}

int FallocateRetrying(int fd, const FileRange& range) {
  int result = 0;
  do {
    result = ::fallocate(fd, 0, static_cast<off_t>(range.begin.value),
                         static_cast<off_t>(range.size.value));
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

/// The parts of the first `size` bytes that have to be reserved. What is reserved already is not
/// asked for again: XFS takes up to 8 GiB of free space for that while it lasts, and has it not on
/// a drive that the state has nearly filled.
Result<std::vector<FileRange>> Unreserved(int fd, Bytes size, Bytes held, Bytes length) {
  const Result<FileExtents> extents = ReadExtents(fd);
  if (!extents.ok() && extents.error().code != ErrorCode::kUnavailable) return extents.error();
  // If it does not report them, the sum decides.
  const bool all = !extents.ok() && held >= size;
  std::vector<FileRange> parts{{FileOffset{}, size}};
  if (extents.ok()) parts = HolesIn(*extents, size);
  if (all) parts.clear();
  // Blocks may lie beyond the end of a file, which reserving moves.
  if (parts.empty() && length < size) parts.push_back({FileOffset{length.value}, size - length});
  return parts;
}

}  // namespace

Result<File> File::Open(const std::string& path, const OpenOptions& options) {
  if (!options.create) return OpenBoth(path, options);
  PENSTOCK_TRY(CreateEmpty(path));
  CreatedFile created(path);
  Result<File> file = OpenBoth(path, options);
  if (file.ok()) created.Keep();
  return file;
}

Result<File> File::OpenBoth(const std::string& path, const OpenOptions& options) {
  const auto open = [&path](const OpenOptions& how) {
    return UnsharedFd::Open([&] { return OpenExisting(path, how); });
  };
  PENSTOCK_ASSIGN(UnsharedFd fd, open(options));
  if (!options.direct) return Of(std::move(fd), path, 1_B);
  OpenOptions buffered = options;
  buffered.direct = false;
  PENSTOCK_ASSIGN(UnsharedFd buffered_fd, open(buffered));
  // No read-ahead: the page cache holds the pages that unaligned requests touch and no others, as
  // direct I/O runs on their neighbours.
  ::posix_fadvise(buffered_fd.get(), 0, 0, POSIX_FADV_RANDOM);
  const Bytes alignment = DirectAlignment(fd.get());
  File file = Of(std::move(fd), path, alignment);
  file.buffered_fd_ = std::move(buffered_fd);
  return file;
}

Result<File> File::Reopen(int fd, const std::string& path, bool writable) {
  Result<File> file =
      OpenBoth(fmt::format("/proc/self/fd/{}", fd), {.writable = writable, .direct = true});
  if (file.ok()) {
    file->path_ = path;
    return file;
  }
  // No O_DIRECT, or no /proc.
  UniqueFd same(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!same.valid()) return ErrnoError(errno, fmt::format("opening {} once more", path));
  return Adopt(std::move(same), path, 1_B);
}

File File::Adopt(UniqueFd fd, std::string name, Bytes alignment) {
  return Of(UnsharedFd(std::move(fd)), std::move(name), alignment);
}

File File::Of(UnsharedFd fd, std::string name, Bytes alignment) {
  PENSTOCK_CHECK(alignment.value > 0);
  File file;
  file.fd_ = std::move(fd);
  file.path_ = std::move(name);
  file.alignment_ = alignment;
  return file;
}

Result<File> File::InMemory(std::string name, Bytes alignment) {
  UniqueFd fd(::memfd_create("penstock", MFD_CLOEXEC));
  if (!fd.valid()) return ErrnoError(errno, fmt::format("making {} in memory", name));
  File file = Adopt(std::move(fd), std::move(name), alignment);
  file.in_memory_ = true;
  return file;
}

Status File::Allocate(Bytes size) {
  if (size.value == 0) return {};
  PENSTOCK_TRY(Reserve(size));
  if (!in_memory_) return {};
  PENSTOCK_ASSIGN(memory_bytes_, Size());
  PENSTOCK_ASSIGN(memory_, Mapping::OfFile(fd(), memory_bytes_));
  return {};
}

Status File::Reserve(Bytes size) {
  struct stat before {};
  if (::fstat(fd(), &before) != 0) {
    return ErrnoError(errno, fmt::format("reading the size of {}", path_));
  }
  const Bytes held = kAllocatedUnit * static_cast<uint64_t>(before.st_blocks);
  constexpr Bytes kMaxOffset{static_cast<uint64_t>(std::numeric_limits<off_t>::max())};
  if (size > kMaxOffset) return NoSpace(path_, size, size, FreeSpace(fd()));
  PENSTOCK_ASSIGN(const std::vector<FileRange> parts,
                  Unreserved(fd(), size, held, Bytes{static_cast<uint64_t>(before.st_size)}));
  Bytes unreserved;
  for (const FileRange& part : parts) unreserved += part.size;
  // If the file system does not report the parts, some of them are there.
  const Bytes missing = unreserved == size && held < size ? size - held : unreserved;
  // Asked first, so that a reservation that cannot fit does not fill the drive on its way to
  // failing.
  const std::optional<Bytes> free = FreeSpace(fd());
  if (free && missing > *free) return NoSpace(path_, size, missing, free);

  int error_number = 0;
  for (size_t i = 0; i < parts.size() && error_number == 0; ++i) {
    error_number = FallocateRetrying(fd(), parts[i]);
  }
  // After the last hole there may be blocks beyond the end, which has not moved then.
  struct stat after {};
  if (error_number == 0 && ::fstat(fd(), &after) == 0) {
    const Bytes length{static_cast<uint64_t>(after.st_size)};
    if (length < size)
      error_number = FallocateRetrying(fd(), {FileOffset{length.value}, size - length});
  }
  if (error_number == 0) return {};
  // Give back what a failed reservation took beyond the end.
  if (::ftruncate(fd(), before.st_size) != 0) {
    return ErrnoError(errno, fmt::format("cutting {} back after a failed reservation", path_));
  }
  if (error_number == EOPNOTSUPP) {
    return MakeError(
        ErrorCode::kUnavailable,
        "reserving {} for {}: its file system cannot reserve space (fallocate); name a "
        "path on one that can (ext4, xfs)",
        ToString(size), path_);
  }
  if (error_number == ENOSPC) return NoSpace(path_, size, missing, FreeSpace(fd()));
  return ErrnoError(error_number, fmt::format("reserving {} for {}", ToString(size), path_));
}

Result<Bytes> File::Size() const {
  struct stat info {};
  if (::fstat(fd(), &info) != 0) {
    return ErrnoError(errno, fmt::format("reading the size of {}", path_));
  }
  if (!S_ISBLK(info.st_mode)) return Bytes{static_cast<uint64_t>(info.st_size)};
  uint64_t device_size = 0;
  if (::ioctl(fd(), BLKGETSIZE64, &device_size) != 0) {
    return ErrnoError(errno, fmt::format("reading the size of {}", path_));
  }
  return Bytes{device_size};
}

}  // namespace penstock::aio
