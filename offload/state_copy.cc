#include "offload/state_copy.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/file_lock.h"
#include "base/folder.h"
#include "base/for_each_index.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "offload/state_names.h"
#include "offload/state_path.h"

namespace penstock::offload {
namespace {

/// Threads that each have a tile in memory: it is read, hashed and written while the others read,
/// hash and write theirs.
constexpr size_t kMaxCopyThreads = 4;
constexpr Bytes kMaxCopyMemory = 64_MiB;  // or one tile

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

  /// Gives blocks back, where the file system can; the bytes are zeros then.
  Status PunchHole(FileOffset offset, Bytes size) {
    int result = 0;
    do {
      result = ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                           static_cast<off_t>(offset.value), static_cast<off_t>(size.value));
    } while (result != 0 && errno == EINTR);
    if (result == 0 || errno == EOPNOTSUPP) return {};
    return ErrnoError(errno, fmt::format("freeing {} of {}", ToString(size), path()));
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

  /// Threads: any, each with other bytes of the file.
  Status Write(FileOffset offset, std::span<const std::byte> bytes) const {
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

/// The copy of one rank's files.
class RankCopy {
 public:
  /// A part of one of the files.
  struct Range {
    Target* file;
    FileOffset offset;
    Bytes size;
  };

  RankCopy(const StateReader& from, std::vector<Target> to) : from_(from), to_(std::move(to)) {}

  /// Whether the file system did it, for all files.
  bool Clone() {
    for (size_t path = 0; path < to_.size(); ++path) {
      if (!to_[path].Clone(from_.fd(path))) return false;
    }
    return true;
  }
  /// Makes the files as long as the originals, and empty.
  Status Resize() {
    for (size_t path = 0; path < to_.size(); ++path) {
      PENSTOCK_TRY(to_[path].Resize(Bytes{}));
      PENSTOCK_TRY(to_[path].Resize(from_.geometry(path).whole_bytes()));
    }
    return {};
  }
  /// Adds all that will be written: heads and commit places, and the tiles' parts.
  void AddRanges(std::vector<Range>& ranges);
  Status CopyTiles(const std::function<bool()>& stop_requested);
  /// Of a clone, which has read nothing of what the commit names.
  Status VerifyTiles(const std::function<bool()>& stop_requested);
  /// Writes heads and the commit, after everything that they name.
  Status WriteHeads();
  /// Removes from a clone what stands in the other commit place: the original may have a newer
  /// commit there meanwhile. Then the slots that the commit does not name: the original is about to
  /// write them, and what a clone shares with it takes new blocks to write.
  Status EraseOther();
  Status Sync() {
    for (Target& file : to_) PENSTOCK_TRY(file.Sync());
    return {};
  }
  /// Path 0 comes last: if it exists, all do.
  Status Finish() {
    for (size_t path = to_.size(); path-- > 0;) PENSTOCK_TRY(to_[path].Finish());
    return {};
  }

 private:
  size_t PathOf(TileId tile) const { return from_.header().tiles[Index(tile)].path; }

  Status FreeOtherSlots();
  /// Does `work` for each tile, on several threads.
  Status ForEachTile(const std::function<bool()>& stop_requested,
                     const std::function<Status(TileId)>& work);
  Status CopyTile(TileId tile);

  const StateReader& from_;
  std::vector<Target> to_;  ///< by path
};

void RankCopy::AddRanges(std::vector<Range>& ranges) {
  for (size_t path = 0; path < to_.size(); ++path) {
    const Bytes heads{from_.geometry(path).weights_offset[0].value};
    ranges.push_back({&to_[path], FileOffset{}, heads});
    ranges.push_back(
        {&to_[path], from_.geometry(path).second_head(), from_.geometry(path).head_bytes()});
  }
  const ShardLayout& layout = from_.layout();
  for (const TileId tile : layout.Tiles()) {
    Target* const file = &to_[PathOf(tile)];
    ranges.push_back({file, from_.OffsetOf(Part::kWeight, tile),
                      AlignUp(layout.WeightBytes(tile), kStateAlignment)});
    const Bytes record = AlignUp(layout.RecordBytes(tile), kStateAlignment);
    if (record == 0_B) continue;  // of a frozen tile
    ranges.push_back({file, from_.OffsetOf(Part::kRecord, tile), record});
  }
}

Status RankCopy::ForEachTile(const std::function<bool()>& stop_requested,
                             const std::function<Status(TileId)>& work) {
  const ShardLayout& layout = from_.layout();
  const Bytes largest = layout.largest_weight() + layout.largest_record();
  const size_t threads =
      std::clamp<size_t>(kMaxCopyMemory / std::max(largest, 1_B), 1, kMaxCopyThreads);
  Mutex asking;
  return ForEachIndex(layout.tiles.size(), static_cast<int>(threads), [&](size_t i) -> Status {
    {
      MutexLock lock(asking);
      if (stop_requested()) {
        return MakeError(ErrorCode::kCancelled, "interrupted: nothing is copied");
      }
    }
    return work(TileId{static_cast<uint32_t>(i)});
  });
}

Status RankCopy::CopyTiles(const std::function<bool()>& stop_requested) {
  return ForEachTile(stop_requested, [this](TileId tile) { return CopyTile(tile); });
}

Status RankCopy::VerifyTiles(const std::function<bool()>& stop_requested) {
  return ForEachTile(stop_requested, [this](TileId tile) {
    StateReader::TileBytes bytes;
    return from_.ReadTile(tile, bytes);
  });
}

/// Verified between reading and writing. Threads: any, each with other tiles.
Status RankCopy::CopyTile(TileId tile) {
  StateReader::TileBytes bytes;
  PENSTOCK_TRY(from_.ReadTile(tile, bytes));
  const Target& file = to_[PathOf(tile)];
  PENSTOCK_TRY(file.Write(from_.OffsetOf(Part::kWeight, tile), bytes.weight));
  return file.Write(from_.OffsetOf(Part::kRecord, tile), bytes.record);
}

Status RankCopy::WriteHeads() {
  const CommitRecord& commit = from_.commit();
  PENSTOCK_TRY(to_.front().Write(from_.geometry(0).commit_offset[commit.sequence % 2],
                                 EncodeCommit(from_.Identity(), commit)));
  for (size_t path = 0; path < to_.size(); ++path) {
    std::vector<std::byte> head = from_.Head(path);
    PENSTOCK_TRY(to_[path].Write(FileOffset{}, head));
    PENSTOCK_TRY(to_[path].Write(from_.geometry(path).second_head(), SecondHead(std::move(head))));
  }
  return {};
}

Status RankCopy::EraseOther() {
  const StateGeometry& geometry = from_.geometry(0);
  const uint64_t other = (from_.commit().sequence + 1) % 2;
  PENSTOCK_TRY(to_.front().Write(geometry.commit_offset[other],
                                 std::vector<std::byte>(geometry.commit_bytes.value)));
  return FreeOtherSlots();
}

Status RankCopy::FreeOtherSlots() {
  const ShardLayout& layout = from_.layout();
  if (from_.geometry(0).slots == 1) return {};
  for (const Part part : {Part::kWeight, Part::kRecord}) {
    for (size_t path = 0; path < to_.size(); ++path) {
      std::optional<Range> pending;  // grows while tiles lie behind each other
      for (const TileId tile : layout.Tiles()) {
        if (PathOf(tile) != path || layout.frozen(tile)) continue;
        const int other = 1 - static_cast<int>(from_.commit().tiles[Index(tile)].slot);
        const FileOffset at =
            PartOffset(from_.geometry(path), from_.header().tiles[Index(tile)], part, other);
        const Bytes size =
            AlignUp(part == Part::kWeight ? layout.WeightBytes(tile) : layout.RecordBytes(tile),
                    kStateAlignment);
        if (pending && pending->offset + pending->size == at) {
          pending->size += size;
          continue;
        }
        if (pending) PENSTOCK_TRY(to_[path].PunchHole(pending->offset, pending->size));
        pending = Range{&to_[path], at, size};
      }
      if (pending) PENSTOCK_TRY(to_[path].PunchHole(pending->offset, pending->size));
    }
  }
  return {};
}

class Copier {
 public:
  Copier(std::vector<RankCopy> ranks, const std::function<bool()>& stop_requested)
      : ranks_(std::move(ranks)), stop_requested_(stop_requested) {}

  Status Run() {
    PENSTOCK_TRY(Fill());
    for (RankCopy& rank : ranks_) PENSTOCK_TRY(rank.Sync());
    for (size_t rank = ranks_.size(); rank-- > 0;) PENSTOCK_TRY(ranks_[rank].Finish());
    return {};
  }

 private:
  Status Fill() {
    std::vector<RankCopy::Range> ranges;
    for (RankCopy& rank : ranks_) rank.AddRanges(ranges);
    // For a clone as well: what it shares with the original takes new blocks as soon as that is
    // written, and then nothing else is asked whether there are any.
    PENSTOCK_TRY(CheckSpace(ranges));
    if (!std::ranges::all_of(ranks_, &RankCopy::Clone)) return CopyAll(ranges);
    for (RankCopy& rank : ranks_) {
      PENSTOCK_TRY(rank.EraseOther());
      PENSTOCK_TRY(rank.VerifyTiles(stop_requested_));
      PENSTOCK_TRY(rank.WriteHeads());  // whatever the original's heads are
    }
    return {};
  }

  Status CopyAll(const std::vector<RankCopy::Range>& ranges) {
    for (RankCopy& rank : ranks_) PENSTOCK_TRY(rank.Resize());
    // What a copy could not hold must not be written: whoever shares the drive would find it full.
    for (const RankCopy::Range& range : ranges) {
      PENSTOCK_TRY(range.file->Reserve(range.offset, range.size));
    }
    for (RankCopy& rank : ranks_) {
      PENSTOCK_TRY(rank.CopyTiles(stop_requested_));
      PENSTOCK_TRY(rank.WriteHeads());
    }
    return {};
  }

  /// Several files may lie on one file system.
  static Status CheckSpace(const std::vector<RankCopy::Range>& ranges) {
    std::map<const Target*, Bytes> of_file;
    for (const RankCopy::Range& range : ranges) of_file[range.file] += range.size;
    std::map<dev_t, std::pair<const Target*, Bytes>> needs;
    for (const auto& [file, size] : of_file) {
      PENSTOCK_ASSIGN(const dev_t drive, file->FileSystem());
      auto& [on_it, need] = needs[drive];
      on_it = file;
      need += size;
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

  std::vector<RankCopy> ranks_;
  const std::function<bool()>& stop_requested_;
};

}  // namespace

Status CopyState(const WholeState& state, const RankPaths& targets,
                 const std::function<bool()>& stop_requested) {
  PENSTOCK_CHECK(targets.size() == state.world_size());
  std::vector<RankCopy> ranks;
  for (uint32_t rank = 0; rank < state.world_size(); ++rank) {
    PENSTOCK_CHECK(targets[rank].size() == state.rank(rank).header().paths);
    std::vector<Target> files;
    for (const std::string& path : targets[rank]) {
      PENSTOCK_ASSIGN(Target file, Target::Create(path));
      files.push_back(std::move(file));
    }
    ranks.emplace_back(state.rank(rank), std::move(files));
  }
  return Copier(std::move(ranks), stop_requested).Run();
}

}  // namespace penstock::offload
