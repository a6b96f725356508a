#include "offload/state_check.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "aio/aio.h"
#include "base/for_each_index.h"
#include "base/mapping.h"
#include "base/mutex.h"

namespace penstock::offload {
namespace {

constexpr size_t kMostTilesInFlight = 4;
constexpr Bytes kMostMemory = 256_MiB;

/// A path's file and the engine that reads it.
struct Path {
  std::unique_ptr<aio::Engine> engine;
  aio::File file;
};

Result<Path> OpenPath(const std::string& path) {
  PENSTOCK_ASSIGN(std::unique_ptr<aio::Engine> engine, aio::CreateEngine({}));
  Result<aio::File> file = aio::File::Open(path, {.direct = true});
  if (!file.ok() && file.error().code == ErrorCode::kUnavailable) {
    file = aio::File::Open(path, {.direct = false});
  }
  PENSTOCK_TRY(file.status());
  return Path{std::move(engine), *std::move(file)};
}

class Checker {
 public:
  /// Each of `free` holds the largest tile.
  Checker(const StateReader& state, std::vector<Path> paths, const CheckProgress& progress,
          const TileVisitor& visit, std::vector<std::span<std::byte>> free)
      : state_(state),
        paths_(std::move(paths)),
        progress_(progress),
        visit_(visit),
        free_(std::move(free)) {}

  /// From as many threads at a time as there is free memory for.
  void Check(TileId tile) EXCLUDES(mutex_) {
    std::span<std::byte> memory;
    {
      MutexLock lock(mutex_);
      memory = free_.back();
      free_.pop_back();
    }
    CheckTile(tile, memory);
    MutexLock lock(mutex_);
    free_.push_back(memory);
  }

  StateCheck Finish() {
    MutexLock lock(mutex_);
    std::ranges::sort(found_);
    for (auto& [place, text] : found_) check_.damages.push_back(std::move(text));
    return std::move(check_);
  }

 private:
  void CheckTile(TileId tile, std::span<std::byte> memory) {
    const ShardLayout& layout = state_.layout();
    const auto weight = memory.first(layout.WeightBytes(tile).value);
    const auto record = memory.subspan(weight.size(), layout.RecordBytes(tile).value);
    const aio::Ticket weight_read = Read(tile, Part::kWeight, weight);
    const aio::Ticket record_read =
        record.empty() ? aio::Ticket() : Read(tile, Part::kRecord, record);
    const bool weight_holds = CheckPart(Part::kWeight, tile, weight_read.Wait(), weight);
    const bool record_holds =
        CheckPart(Part::kRecord, tile, record_read.valid() ? record_read.Wait() : Status(), record);
    if (visit_ && weight_holds && record_holds) visit_(tile, weight, record);
    MutexLock lock(mutex_);
    check_.read += Bytes{weight.size() + record.size()};
    progress_(check_.read, layout.weight_bytes() + layout.record_bytes());
  }

  aio::Ticket Read(TileId tile, Part part, std::span<std::byte> buffer) {
    Path& path = paths_[state_.header().tiles[Index(tile)].path];
    return path.engine->Submit({.operation = aio::Operation::kRead,
                                .file = &path.file,
                                .offset = state_.OffsetOf(part, tile),
                                .buffer = buffer});
  }

  /// Whether a part is intact.
  bool CheckPart(Part part, TileId tile, const Status& read, std::span<const std::byte> bytes) {
    std::string damage;
    if (!read.ok()) {
      damage = fmt::format("{}: {}", state_.Describe(part, tile), read.error().message);
    } else if (const Status verified = state_.VerifyPart(part, tile, bytes); !verified.ok()) {
      damage = verified.error().message;
    } else {
      return true;
    }
    MutexLock lock(mutex_);
    found_.emplace_back(std::pair(Index(tile), part), std::move(damage));
    return false;
  }

  const StateReader& state_;
  std::vector<Path> paths_;
  const CheckProgress& progress_;
  const TileVisitor& visit_;
  Mutex mutex_;
  std::vector<std::span<std::byte>> free_ GUARDED_BY(mutex_);
  StateCheck check_ GUARDED_BY(mutex_);
  std::vector<std::pair<std::pair<size_t, Part>, std::string>> found_ GUARDED_BY(mutex_);
};

}  // namespace

Result<StateCheck> CheckState(const StateReader& state, const CheckProgress& progress,
                              const TileVisitor& visit) {
  std::vector<std::string> damages = state.CheckHeads();
  PENSTOCK_ASSIGN(StateCheck check, CheckTiles(state, progress, visit));
  check.in_heads = damages.size();
  check.damages.insert(check.damages.begin(), damages.begin(), damages.end());
  return check;
}

Result<StateCheck> CheckTiles(const StateReader& state, const CheckProgress& progress,
                              const TileVisitor& visit) {
  std::vector<Path> paths;
  for (size_t i = 0; i < state.header().paths; ++i) {
    PENSTOCK_ASSIGN(Path path, OpenPath(state.path(i)));
    paths.push_back(std::move(path));
  }
  const ShardLayout& layout = state.layout();
  if (layout.tiles.empty()) return StateCheck{};
  const Bytes tile = layout.largest_weight() + layout.largest_record();
  const size_t workers = std::clamp<size_t>(kMostMemory / tile, 1, kMostTilesInFlight);
  PENSTOCK_ASSIGN(const Mapping memory, Mapping::Create(tile * workers));
  std::vector<std::span<std::byte>> parts;
  for (size_t i = 0; i < workers; ++i) {
    parts.emplace_back(memory.data() + i * tile.value, tile.value);
  }
  Checker checker(state, std::move(paths), progress, visit, std::move(parts));
  PENSTOCK_TRY(ForEachIndex(layout.tiles.size(), static_cast<int>(workers), [&](size_t i) {
    checker.Check(layout.Tiles()[i]);
    return Status();
  }));
  return checker.Finish();
}

}  // namespace penstock::offload
