#include "offload/state_path.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>
#include <system_error>
#include <utility>

#include "base/file_lock.h"
#include "base/folder.h"
#include "base/mapping.h"

namespace penstock::offload {
namespace {

Result<aio::File> OpenFile(const StatePathOptions& options, bool create) {
  if (options.simulated && create) {
    return aio::File::InMemory("simulated drive", kStateAlignment);
  }
  std::error_code ignored;
  if (!std::filesystem::exists(options.folder, ignored)) {
    return MakeError(ErrorCode::kNotFound,
                     "there is no folder {} for the state; create it or name another",
                     options.folder);
  }
  const std::string path = fmt::format("{}/{}", options.folder, options.name);
  aio::File::OpenOptions open{.create = create, .writable = true, .direct = true};
  auto file = aio::File::Open(path, open);
  if (file.ok() || options.require_direct || file.error().code != ErrorCode::kUnavailable) {
    return file;
  }
  open.direct = false;
  return aio::File::Open(path, open);
}

/// Errors: kNotFound if `file` was deleted; kUnavailable if it was moved away from its path. Any
/// other failure to check the path is reported as such, and also fails a commit: a commit counts
/// only in a file that was found at its path.
Status CheckIsAtPath(const aio::File& file, const struct stat& opened) {
  struct stat found {};
  int result = 0;
  do {
    result = ::stat(file.path().c_str(), &found);
  } while (result != 0 && errno == EINTR);  // as on a network file system
  const bool is_there = result == 0;
  if (!is_there && errno != ENOENT && errno != ENOTDIR) {
    return ErrnoError(errno, "looking at " + file.path());
  }
  if (is_there && found.st_dev == opened.st_dev && found.st_ino == opened.st_ino) return {};
  if (opened.st_nlink == 0) {
    return MakeError(ErrorCode::kNotFound,
                     "state file {} was deleted while it was in use: what was written to it is "
                     "lost",
                     file.path());
  }
  return MakeError(ErrorCode::kUnavailable,
                   "state file {} was moved away while it was in use{}: move it back, and see with "
                   "penstock inspect what it holds",
                   file.path(), is_there ? ", and another file is in its place" : "");
}

/// Fills `buffer`, from the drive itself if the page cache can be dropped.
Status ReadFromDrive(const aio::File& file, FileOffset offset, const Mapping& buffer) {
  ::posix_fadvise(file.fd(), static_cast<off_t>(offset.value),
                  static_cast<off_t>(buffer.size().value), POSIX_FADV_DONTNEED);
  for (uint64_t done = 0; done < buffer.size().value;) {
    const ssize_t n = ::pread(file.fd(), buffer.data() + done, buffer.size().value - done,
                              static_cast<off_t>(offset.value + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return ErrnoError(
          errno, fmt::format("reading {} back at offset {}", file.path(), offset.value + done));
    }
    if (n == 0) break;  // CheckPlace names a file that is too short
    done += static_cast<uint64_t>(n);
  }
  return {};
}

}  // namespace

StatePath::StatePath(aio::File file, StatePathOptions options, aio::Engine& engine)
    : file_(std::move(file)), options_(std::move(options)), engine_(engine) {}

StatePath::~StatePath() {
  struct stat opened {};
  const bool goes = !keep_ && !options_.simulated && ::fstat(file_.fd(), &opened) == 0;
  if (goes && CheckIsAtPath(file_, opened).ok()) ::unlink(file_.path().c_str());
  UnlockFile(file_.fd());
}

Result<std::unique_ptr<StatePath>> StatePath::Create(const StatePathOptions& options,
                                                     aio::Engine& engine) {
  return OpenOrCreate(options, true, engine);
}

Result<std::unique_ptr<StatePath>> StatePath::Open(const StatePathOptions& options,
                                                   aio::Engine& engine) {
  return OpenOrCreate(options, false, engine);
}

Result<std::unique_ptr<StatePath>> StatePath::OpenOrCreate(const StatePathOptions& options,
                                                           bool create, aio::Engine& engine) {
  PENSTOCK_ASSIGN(aio::File file, OpenFile(options, create));
  std::unique_ptr<StatePath> path(new StatePath(std::move(file), options, engine));
  path->keep_ = !create;
  if (const Bytes unit = path->file_.alignment(); unit > kStateAlignment) {
    return MakeError(
        ErrorCode::kUnavailable,
        "{} asks for I/O in units of {} bytes, and this version writes in units of {}; "
        "use another drive",
        options.folder, unit.value, kStateAlignment.value);
  }
  PENSTOCK_ASSIGN(path->registration_, engine.RegisterFile(path->file_));
  PENSTOCK_TRY(LockFile(path->file_.fd(), true, path->file_path()));
  return path;
}

Status StatePath::MarkUnfinished(const Uuid& uuid) {
  PENSTOCK_TRY(Write(FileOffset{}, EncodeUnfinishedMark(uuid), "mark of an unfinished state"));
  return Sync();
}

Result<double> StatePath::Measure(const aio::SpeedProbe& probe, Bytes size) {
  PENSTOCK_CHECK(!options_.simulated, "the speed of a simulated drive is known");
  PENSTOCK_TRY(file_.Allocate(kHeaderBytes + size));
  PENSTOCK_ASSIGN(const double speed, probe(engine_, file_, size));
  if (::ftruncate(file_.fd(), static_cast<off_t>(kHeaderBytes.value)) != 0) {
    return ErrnoError(errno, "cutting " + file_path());
  }
  return speed;
}

Status StatePath::Write(FileOffset offset, std::span<const std::byte> bytes, std::string about) {
  const Bytes size = AlignUp(Bytes{bytes.size()}, kStateAlignment);
  PENSTOCK_ASSIGN(const Mapping buffer, Mapping::Create(size));
  std::memcpy(buffer.data(), bytes.data(), bytes.size());
  return Submit({.operation = aio::Operation::kWrite,
                 .offset = offset,
                 .buffer = {buffer.data(), size.value},
                 .priority = aio::Priority::kWriteBack,
                 .about = [about = std::move(about)] { return about; }})
      .Wait();
}

void StatePath::LeaveCache(FileOffset offset, Bytes size) const {
  if (file_.alignment() > 1_B) return;  // there is no page cache between
  ::posix_fadvise(file_.fd(), static_cast<off_t>(offset.value), static_cast<off_t>(size.value),
                  POSIX_FADV_DONTNEED);
}

Status StatePath::CheckPlace() const {
  if (options_.simulated) return {};
  struct stat opened {};
  if (::fstat(file_.fd(), &opened) != 0) return ErrnoError(errno, "looking at " + file_path());
  PENSTOCK_TRY(CheckIsAtPath(file_, opened));
  const Bytes size{static_cast<uint64_t>(opened.st_size)};
  if (size >= held_bytes_) return {};
  return MakeError(ErrorCode::kCorruption,
                   "state file {} was cut from {} to {} bytes while it was in use: what it held "
                   "is lost",
                   file_path(), held_bytes_.value, size.value);
}

Result<std::string> StatePath::CheckHeads() {
  PENSTOCK_TRY(CheckPlace());
  std::vector<WrittenBytes> holding;
  Status damage;
  for (const WrittenBytes& head : heads_) {
    const Status holds = CheckWritten(head, "head");
    if (holds.ok()) {
      holding.push_back(head);
      continue;
    }
    if (!IsReadDamage(holds.error())) return holds.error();
    damage = holds;
  }
  if (damage.ok()) return std::string();
  if (holding.empty()) return damage.error();
  heads_ = std::move(holding);
  return fmt::format("{}; its other head holds, and the next --resume writes this one again",
                     damage.error().message);
}

Status StatePath::CheckWritten(const WrittenBytes& written, const char* what) const {
  PENSTOCK_ASSIGN(const Mapping buffer, Mapping::Create(AlignUp(written.size, kStateAlignment)));
  PENSTOCK_TRY(ReadFromDrive(file_, written.offset, buffer));
  if (Checksum({buffer.data(), written.size.value}) == written.checksum) return {};
  return MakeError(ErrorCode::kCorruption,
                   "the {} of state file {} ({} bytes at offset {}) does not read back as it was "
                   "written: something else wrote into the file, or the drive lost it",
                   what, file_path(), written.size.value, written.offset.value);
}

namespace {

WrittenBytes WrittenAt(FileOffset offset, std::span<const std::byte> bytes) {
  return {.offset = offset, .size = Bytes{bytes.size()}, .checksum = Checksum(bytes)};
}

}  // namespace

Result<std::string> StatePath::Adopt(const StateGeometry& geometry, std::vector<std::byte> head) {
  PENSTOCK_ASSIGN(const Bytes size, file_.Size());
  if (size < geometry.file_bytes) {
    return MakeError(ErrorCode::kCorruption,
                     "state file {} has {} bytes of the {} that it began with", file_path(),
                     size.value, geometry.file_bytes.value);
  }
  geometry_ = geometry;
  // A copy may have holes in place of the other slot.
  PENSTOCK_TRY(file_.Allocate(geometry_.file_bytes));
  PENSTOCK_ASSIGN(std::string notice, MakeRoomForSecondHead(size));
  const std::vector<std::byte> second = SecondHead(head);
  const struct {
    const char* name;
    WrittenBytes written;
    std::function<Status()> write;
  } heads[] = {{"first", WrittenAt(FileOffset{}, head), [&] { return WriteFirstHead(head); }},
               {"second", WrittenAt(geometry_.second_head(), second), [&]() -> Status {
                  PENSTOCK_TRY(Write(geometry_.second_head(), second));
                  return Sync();
                }}};
  // One at a time, so that a kill leaves the other one; a sound one is not touched.
  Status last;
  for (const auto& [name, written, write] : std::span(heads).first(notice.empty() ? 2 : 1)) {
    const Status before = CheckWritten(written, "head");
    Status now = before;
    if (!now.ok()) now = write();
    if (now.ok() && !before.ok()) now = CheckWritten(written, "head");
    if (now.ok()) heads_.push_back(written);
    if (before.ok() || (now.ok() && size < geometry_.whole_bytes())) continue;
    notice += fmt::format("{}the {} head of state file {} {} ({})", notice.empty() ? "" : "; ",
                          name, file_path(),
                          now.ok() ? "did not hold and was written again"
                                   : "does not hold and cannot be written; the other one is used",
                          now.ok() ? before.error().message : now.error().message);
    if (!now.ok()) last = now;
  }
  if (heads_.empty()) return last.error();
  return notice;
}

/// Older files have no second head, and a full drive may have no room for one. Returns the notice
/// of that; an empty one if there is room.
Result<std::string> StatePath::MakeRoomForSecondHead(Bytes size) {
  const Status room = file_.Allocate(geometry_.whole_bytes());
  if (room.ok()) {
    held_bytes_ = geometry_.whole_bytes();
    return std::string();
  }
  if (room.error().code != ErrorCode::kOutOfSpace || size >= geometry_.whole_bytes()) {
    return room.error();
  }
  held_bytes_ = geometry_.file_bytes;
  return fmt::format(
      "state file {} has no second head, and its drive no room for one ({} needed): if the first "
      "is lost, so is the state; a resume with more free space adds it",
      file_path(), ToString(geometry_.head_bytes()));
}

Status StatePath::WriteFirstHead(std::span<const std::byte> head) {
  PENSTOCK_TRY(Write(geometry_.layout_offset, head.subspan(geometry_.layout_offset.value)));
  PENSTOCK_TRY(Sync());
  PENSTOCK_TRY(Write(FileOffset{}, head.first(geometry_.layout_offset.value)));
  return Sync();
}

Status StatePath::WriteHead(const StateHeader& header) {
  geometry_ = header.geometry;
  held_bytes_ = geometry_.whole_bytes();
  PENSTOCK_TRY(file_.Allocate(held_bytes_));
  const std::vector<std::byte> head = EncodeHead(header);
  const std::vector<std::byte> second = SecondHead(head);
  for (FileOffset place : geometry_.commit_offset) {
    PENSTOCK_TRY(
        Write(place, std::vector<std::byte>(geometry_.commit_bytes.value), "place of a commit"));
  }
  PENSTOCK_TRY(Write(geometry_.second_head(), second));
  PENSTOCK_TRY(WriteFirstHead(head));  // synchronises before the header
  heads_ = {WrittenAt(FileOffset{}, head), WrittenAt(geometry_.second_head(), second)};
  return options_.simulated ? Status() : SyncFolder(options_.folder);
}

}  // namespace penstock::offload
