#include "offload/state_copy.h"

#include <fcntl.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/for_each_index.h"
#include "base/mutex.h"
#include "offload/copy_target.h"
#include "offload/tile_reads.h"
#include "offload/tile_rooms.h"

namespace penstock::offload {
namespace {

/// Threads that each have a tile in memory: it is read, hashed and written while the others read,
/// hash and write theirs.
constexpr size_t kMaxCopyThreads = 4;
constexpr Bytes kMaxCopyMemory = 64_MiB;  // or one tile

/// A state without ".state" in its name has the same callers' files as one with it.
Status CheckNoCallers(const std::string& path0) {
  PENSTOCK_ASSIGN(const Folder folder, Folder::Open(SplitPath(path0).first));
  PENSTOCK_ASSIGN(const std::vector<FoundFile> files, FindCallerFiles(folder, path0));
  return files.empty() ? Status() : CopyTarget::Taken(folder.PathOf(files.front().name));
}

/// The copy of one rank's files.
class RankCopy {
 public:
  /// A part of one of the files.
  struct Range {
    CopyTarget* file;
    FileOffset offset;
    Bytes size;
  };

  /// Creates the files. `paths`: of the copy's, by index of their path.
  static Result<RankCopy> Create(const StateReader& from, const std::vector<std::string>& paths);

  const ShardLayout& layout() const { return from_.layout(); }
  size_t paths() const { return to_.size(); }

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
  /// Reads, verifies and writes all tiles, on as many threads as there are rooms.
  Status CopyTiles(const Engines& engines, TileRooms& rooms,
                   const std::function<bool()>& stop_requested);
  /// Reads and verifies them: of a clone, which has read nothing of what the commit names.
  Status VerifyTiles(const Engines& engines, TileRooms& rooms,
                     const std::function<bool()>& stop_requested) const;
  /// Copies the caller's file, and verifies it. `clone`: has the file system do it, if it can.
  Status CopyCaller(bool clone);
  /// Writes heads and the commit, after everything that they name.
  Status WriteHeads();
  /// Removes from a clone what stands in the other commit place: the original may have a newer
  /// commit there meanwhile. Then the slots that the commit does not name: the original is about to
  /// write them, and what a clone shares with it takes new blocks to write.
  Status EraseOther();
  Status Sync() {
    for (CopyTarget& file : to_) PENSTOCK_TRY(file.Sync());
    return caller_ ? caller_->Sync() : Status();
  }
  /// Path 0 comes last: if it exists, all do.
  Status Finish() {
    if (caller_) PENSTOCK_TRY(caller_->Finish());
    for (size_t path = to_.size(); path-- > 0;) PENSTOCK_TRY(to_[path].Finish());
    return {};
  }
  /// Before this, all files go with the object.
  void Keep() {
    for (CopyTarget& file : to_) file.Keep();
    if (caller_) caller_->Keep();
  }

 private:
  explicit RankCopy(const StateReader& from) : from_(from) {}
  size_t PathOf(TileId tile) const { return from_.header().tiles[Index(tile)].path; }

  Status WriteTile(TileId tile, const TileParts& parts, aio::Engine& engine,
                   const aio::File& file) const;
  Status FreeOtherSlots();
  /// Reads and verifies all tiles, and does `then` with each, on as many threads as there are
  /// rooms.
  Status ReadTiles(const Engines& engines, TileRooms& rooms,
                   const std::function<bool()>& stop_requested,
                   const std::function<Status(TileId, const TileParts&)>& then) const;

  const StateReader& from_;
  std::optional<CopyTarget> caller_;  ///< the caller's file, if the commit has one
  std::vector<CopyTarget> to_;        ///< indexed by path; path 0 is removed before all others
  Bytes caller_bytes_;
};

Result<RankCopy> RankCopy::Create(const StateReader& from, const std::vector<std::string>& paths) {
  RankCopy copy(from);
  PENSTOCK_TRY(CheckNoCallers(paths.front()));
  for (const std::string& path : paths) {
    PENSTOCK_ASSIGN(CopyTarget file, CopyTarget::Create(path));
    copy.to_.push_back(std::move(file));
  }
  PENSTOCK_ASSIGN(const std::optional<CallerFile> caller, from.caller_file());
  if (!caller) return copy;
  PENSTOCK_ASSIGN(CopyTarget file,
                  CopyTarget::Create(CallerFilePath(paths.front(), from.commit().sequence)));
  copy.caller_.emplace(std::move(file));
  copy.caller_bytes_ = caller->bytes;
  return copy;
}

void RankCopy::AddRanges(std::vector<Range>& ranges) {
  for (size_t path = 0; path < to_.size(); ++path) {
    const Bytes heads{from_.geometry(path).weights_offset[0].value};
    ranges.push_back({&to_[path], FileOffset{}, heads});
    ranges.push_back(
        {&to_[path], from_.geometry(path).second_head(), from_.geometry(path).head_bytes()});
  }
  const ShardLayout& layout = from_.layout();
  for (const TileId tile : layout.Tiles()) {
    CopyTarget* const file = &to_[PathOf(tile)];
    ranges.push_back({file, from_.OffsetOf(Part::kWeight, tile),
                      AlignUp(layout.WeightBytes(tile), kStateAlignment)});
    const Bytes record = AlignUp(layout.RecordBytes(tile), kStateAlignment);
    if (record == 0_B) continue;  // a frozen tile has none
    ranges.push_back({file, from_.OffsetOf(Part::kRecord, tile), record});
  }
  if (caller_) ranges.push_back({&*caller_, FileOffset{}, caller_bytes_});
}

Status RankCopy::CopyCaller(bool clone) {
  if (!caller_) return {};
  if (clone) {
    PENSTOCK_ASSIGN(const UniqueFd from, OpenFileAt(from_.caller_path(), O_RDONLY));
    if (caller_->Clone(from.get())) return from_.VisitCaller(kNoVisitor);
  }
  return from_.VisitCaller([&](FileOffset offset, std::span<const std::byte> piece) {
    return caller_->Write(offset, piece);
  });
}

Status RankCopy::ReadTiles(const Engines& engines, TileRooms& rooms,
                           const std::function<bool()>& stop_requested,
                           const std::function<Status(TileId, const TileParts&)>& then) const {
  PENSTOCK_ASSIGN(const auto reads, TileReads::Open(from_, engines));
  Mutex asking;
  const auto threads = static_cast<int>(rooms.count());
  return ForEachIndex(layout().tiles.size(), threads, [&](size_t i) -> Status {
    {
      MutexLock lock(asking);
      if (stop_requested()) {
        return MakeError(ErrorCode::kCancelled, "interrupted: nothing is copied");
      }
    }
    const TileId tile{static_cast<uint32_t>(i)};
    const TileRooms::Lease room(rooms);
    const TileParts parts = PartsIn(room.memory(), layout(), tile);
    PENSTOCK_TRY(reads->Read(tile, parts));
    return then(tile, parts);
  });
}

Status RankCopy::CopyTiles(const Engines& engines, TileRooms& rooms,
                           const std::function<bool()>& stop_requested) {
  std::vector<aio::File> files;
  for (const CopyTarget& target : to_) {
    PENSTOCK_ASSIGN(aio::File file, target.Reopen());
    files.push_back(std::move(file));
  }
  return ReadTiles(engines, rooms, stop_requested, [&](TileId tile, const TileParts& parts) {
    return WriteTile(tile, parts, *engines[PathOf(tile)], files[PathOf(tile)]);
  });
}

Status RankCopy::VerifyTiles(const Engines& engines, TileRooms& rooms,
                             const std::function<bool()>& stop_requested) const {
  return ReadTiles(engines, rooms, stop_requested,
                   [](TileId, const TileParts&) { return Status(); });
}

/// Threads: any, each with other tiles.
Status RankCopy::WriteTile(TileId tile, const TileParts& parts, aio::Engine& engine,
                           const aio::File& file) const {
  const auto write = [&](Part part, std::span<std::byte> bytes) {
    return engine.Submit({.operation = aio::Operation::kWrite,
                          .file = &file,
                          .offset = from_.OffsetOf(part, tile),
                          .buffer = bytes,
                          .priority = aio::Priority::kWriteBack});
  };
  PartTickets writes;
  writes.weight = write(Part::kWeight, parts.weight);
  if (!parts.record.empty()) writes.record = write(Part::kRecord, parts.record);
  return writes.Wait();
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
  Copier(std::vector<RankCopy> ranks, const std::function<bool()>& stop_requested,
         const aio::EngineOptions& io)
      : ranks_(std::move(ranks)), stop_requested_(stop_requested), io_(io) {}

  Status Run() {
    PENSTOCK_TRY(Fill());
    for (RankCopy& rank : ranks_) PENSTOCK_TRY(rank.Sync());
    for (size_t rank = ranks_.size(); rank-- > 0;) PENSTOCK_TRY(ranks_[rank].Finish());
    for (RankCopy& rank : ranks_) rank.Keep();
    return {};
  }

 private:
  Status Fill() {
    std::vector<RankCopy::Range> ranges;
    for (RankCopy& rank : ranks_) rank.AddRanges(ranges);
    // Needed for a clone, too: blocks shared with the original are replaced by new ones as soon as
    // that is written, without another check of the space.
    PENSTOCK_TRY(CheckSpace(ranges));
    const bool cloned = std::ranges::all_of(ranks_, &RankCopy::Clone);
    Bytes room;
    size_t paths = 0;
    for (const RankCopy& rank : ranks_) {
      room = std::max(room, TileRoom(rank.layout()));
      paths = std::max(paths, rank.paths());
    }
    PENSTOCK_ASSIGN(const auto rooms, TileRooms::Create(room, kMaxCopyMemory, kMaxCopyThreads));
    PENSTOCK_ASSIGN(const Engines engines, CreateEngines(paths, io_));
    if (!cloned) return CopyAll(ranges, engines, *rooms);
    for (RankCopy& rank : ranks_) {
      PENSTOCK_TRY(rank.EraseOther());
      PENSTOCK_TRY(rank.VerifyTiles(engines, *rooms, stop_requested_));
      PENSTOCK_TRY(rank.CopyCaller(/*clone=*/true));
      PENSTOCK_TRY(rank.WriteHeads());  // independent of the original's heads
    }
    return {};
  }

  Status CopyAll(const std::vector<RankCopy::Range>& ranges, const Engines& engines,
                 TileRooms& rooms) {
    for (RankCopy& rank : ranks_) PENSTOCK_TRY(rank.Resize());
    // A copy without enough space must not be written: it would fill the drive for all its users.
    for (const RankCopy::Range& range : ranges) {
      PENSTOCK_TRY(range.file->Reserve(range.offset, range.size));
    }
    for (RankCopy& rank : ranks_) {
      PENSTOCK_TRY(rank.CopyTiles(engines, rooms, stop_requested_));
      PENSTOCK_TRY(rank.CopyCaller(/*clone=*/false));
      PENSTOCK_TRY(rank.WriteHeads());
    }
    return {};
  }

  /// Several files may lie on one file system.
  static Status CheckSpace(const std::vector<RankCopy::Range>& ranges) {
    std::map<const CopyTarget*, Bytes> of_file;
    for (const RankCopy::Range& range : ranges) of_file[range.file] += range.size;
    std::map<dev_t, std::pair<const CopyTarget*, Bytes>> needs;
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
  const aio::EngineOptions& io_;
};

}  // namespace

Status CopyState(const WholeState& state, const RankPaths& targets,
                 const std::function<bool()>& stop_requested, const aio::EngineOptions& io) {
  PENSTOCK_CHECK(targets.size() == state.world_size());
  std::vector<RankCopy> ranks;
  for (uint32_t rank = 0; rank < state.world_size(); ++rank) {
    PENSTOCK_CHECK(targets[rank].size() == state.rank(rank).header().paths);
    PENSTOCK_ASSIGN(RankCopy copy, RankCopy::Create(state.rank(rank), targets[rank]));
    ranks.push_back(std::move(copy));
  }
  return Copier(std::move(ranks), stop_requested, io).Run();
}

}  // namespace penstock::offload
