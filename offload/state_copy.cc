#include "offload/state_copy.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/folder.h"
#include "base/unique_fd.h"
#include "offload/state_names.h"
#include "offload/state_path.h"

namespace penstock::offload {
namespace {

/// A file that is being written under its UnfinishedCopy name, and locked; without Finish nothing
/// is left.
class Target {
 public:
  static Result<Target> Create(const std::string& path) {
    const auto [parent, name] = SplitPath(path);
    PENSTOCK_ASSIGN(Folder folder, Folder::Open(parent));
    PENSTOCK_ASSIGN(UniqueFd fd,
                    folder.OpenFile(UnfinishedCopy(name), O_RDWR | O_CREAT | O_EXCL, 0600));
    Target target(std::move(folder), name, std::move(fd));
    PENSTOCK_TRY(LockFile(target.fd_.get(), true, target.temporary()));
    return target;
  }
  Target(Target&& other) noexcept
      : folder_(std::move(other.folder_)),
        name_(std::move(other.name_)),
        fd_(std::move(other.fd_)),
        finished_(std::exchange(other.finished_, true)) {}
  Target& operator=(Target&&) = delete;
  ~Target() {
    if (finished_) return;
    const Result<FileId> own = IdOf(fd_.get(), temporary());
    if (own.ok()) static_cast<void>(folder_.RemoveFile(UnfinishedCopy(name_), *own));
  }

  /// Whether the file system did it.
  bool Clone(int from) { return ::ioctl(fd_.get(), FICLONE, from) == 0; }

  std::string path() const { return folder_.PathOf(name_); }
  Result<dev_t> FileSystem() const {
    struct stat info {};
    if (::fstat(fd_.get(), &info) != 0) return ErrnoError(errno, "looking at " + temporary());
    return info.st_dev;
  }
  /// Of its file system.
  Result<Bytes> Free() const {
    struct statvfs drive {};
    if (::fstatvfs(fd_.get(), &drive) != 0) return ErrnoError(errno, "looking at " + temporary());
    return Bytes{drive.f_frsize} * drive.f_bavail;
  }
  /// Where the file system can; elsewhere the writes will tell.
  Status Reserve(FileOffset offset, Bytes size) {
    int result = 0;
    do {
      result = ::fallocate(fd_.get(), 0, static_cast<off_t>(offset.value),
                           static_cast<off_t>(size.value));
    } while (result != 0 && errno == EINTR);
    if (result == 0 || errno == EOPNOTSUPP) return {};
    return ErrnoError(errno, fmt::format("reserving {} for {}", ToString(size), path()));
  }

  Status Resize(Bytes size) {
    if (::ftruncate(fd_.get(), static_cast<off_t>(size.value)) == 0) return {};
    return ErrnoError(errno, "sizing " + temporary());
  }

  Status Write(FileOffset offset, std::span<const std::byte> bytes) {
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

  Status Sync() {
    if (::fdatasync(fd_.get()) == 0) return {};
    return ErrnoError(errno, "synchronising " + temporary());
  }

  /// Gives a synchronised file its name.
  Status Finish() {
    PENSTOCK_TRY(folder_.Rename(UnfinishedCopy(name_), name_));
    finished_ = true;
    return folder_.Sync();
  }

 private:
  Target(Folder folder, std::string name, UniqueFd fd)
      : folder_(std::move(folder)), name_(std::move(name)), fd_(std::move(fd)) {}
  std::string temporary() const { return UnfinishedCopy(path()); }

  Folder folder_;
  std::string name_;
  UniqueFd fd_;
  bool finished_ = false;
};

class Copier {
 public:
  Copier(const StateReader& state, std::vector<Target> targets,
         const std::function<bool()>& stop_requested)
      : state_(state), targets_(std::move(targets)), stop_requested_(stop_requested) {}

  Status Run() {
    PENSTOCK_TRY(Fill());
    // Path 0 comes last: if it exists, all do.
    for (size_t i = targets_.size(); i-- > 0;) PENSTOCK_TRY(targets_[i].Finish());
    return {};
  }

 private:
  Status Fill() {
    bool cloned = true;
    for (size_t i = 0; i < targets_.size(); ++i) {
      cloned = cloned && targets_[i].Clone(state_.fd(i));
    }
    if (!cloned) PENSTOCK_TRY(CopyAll());
    for (Target& target : targets_) PENSTOCK_TRY(target.Sync());
    return {};
  }

  Status CopyAll() {
    for (size_t i = 0; i < targets_.size(); ++i) {
      PENSTOCK_TRY(targets_[i].Resize(Bytes{}));
      PENSTOCK_TRY(targets_[i].Resize(state_.geometry(i).file_bytes));
    }
    PENSTOCK_TRY(Reserve());
    for (const TileId tile : state_.layout().Tiles()) PENSTOCK_TRY(CopyTile(tile));
    const CommitRecord& commit = state_.commit();
    PENSTOCK_TRY(
        targets_.front().Write(state_.geometry(0).commit_offset[commit.sequence % 2],
                               EncodeCommit({state_.header().uuid, state_.layout()}, commit)));
    for (size_t i = 0; i < targets_.size(); ++i) {
      PENSTOCK_ASSIGN(const std::vector<std::byte> head, state_.ReadHead(i));
      PENSTOCK_TRY(targets_[i].Write(FileOffset{}, head));
    }
    return {};
  }

  /// A part of the file of a path.
  struct Range {
    size_t path;
    FileOffset offset;
    Bytes size;
  };

  /// All that is written: heads and commit places, and the tiles' parts.
  std::vector<Range> Ranges() const {
    std::vector<Range> ranges;
    for (size_t i = 0; i < targets_.size(); ++i) {
      ranges.push_back({i, FileOffset{}, Bytes{state_.geometry(i).weights_offset[0].value}});
    }
    const ShardLayout& layout = state_.layout();
    for (const TileId tile : layout.Tiles()) {
      const size_t path = state_.header().tiles[Index(tile)].path;
      ranges.push_back({path, state_.OffsetOf(Part::kWeight, tile),
                        AlignUp(layout.WeightBytes(tile), kStateAlignment)});
      const Bytes record = AlignUp(layout.RecordBytes(tile), kStateAlignment);
      if (record == 0_B) continue;  // of a frozen tile
      ranges.push_back({path, state_.OffsetOf(Part::kRecord, tile), record});
    }
    return ranges;
  }

  /// What a copy could not hold must not be written: whoever shares the drive would find it full.
  Status Reserve() {
    const std::vector<Range> ranges = Ranges();
    PENSTOCK_TRY(CheckSpace(ranges));
    for (const Range& range : ranges) {
      PENSTOCK_TRY(targets_[range.path].Reserve(range.offset, range.size));
    }
    return {};
  }

  /// Several paths may lie on one file system.
  Status CheckSpace(const std::vector<Range>& ranges) const {
    std::vector<Bytes> of_path(targets_.size());
    for (const Range& range : ranges) of_path[range.path] += range.size;
    std::map<dev_t, std::pair<const Target*, Bytes>> needs;
    for (size_t i = 0; i < targets_.size(); ++i) {
      PENSTOCK_ASSIGN(const dev_t drive, targets_[i].FileSystem());
      auto& [on_it, need] = needs[drive];
      on_it = &targets_[i];
      need += of_path[i];
    }
    for (const auto& [drive, entry] : needs) {
      const auto& [target, need] = entry;
      PENSTOCK_ASSIGN(const Bytes free, target->Free());
      if (free >= need + kFreeBesideCopy) continue;
      return MakeError(ErrorCode::kOutOfSpace,
                       "no space for {}: the copy of the commit takes {} of that drive and leaves "
                       "{} to others, and {} are free",
                       target->path(), ToString(need), ToString(kFreeBesideCopy), ToString(free));
    }
    return {};
  }

  Status CopyTile(TileId tile) {
    if (stop_requested_())
      return MakeError(ErrorCode::kCancelled, "interrupted: nothing is copied");
    PENSTOCK_TRY(state_.ReadTile(tile, bytes_));
    Target& target = targets_[state_.header().tiles[Index(tile)].path];
    PENSTOCK_TRY(target.Write(state_.OffsetOf(Part::kWeight, tile), bytes_.weight));
    return target.Write(state_.OffsetOf(Part::kRecord, tile), bytes_.record);
  }

  const StateReader& state_;
  std::vector<Target> targets_;
  const std::function<bool()>& stop_requested_;
  StateReader::TileBytes bytes_;
};

}  // namespace

Status CopyState(const StateReader& state, const std::vector<std::string>& targets,
                 const std::function<bool()>& stop_requested) {
  PENSTOCK_CHECK(targets.size() == state.header().paths);
  std::vector<Target> files;
  for (const std::string& path : targets) {
    PENSTOCK_ASSIGN(Target file, Target::Create(path));
    files.push_back(std::move(file));
  }
  return Copier(state, std::move(files), stop_requested).Run();
}

}  // namespace penstock::offload
