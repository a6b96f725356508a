#include "offload/state_check.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/for_each_index.h"
#include "base/mutex.h"
#include "offload/tile_reads.h"
#include "offload/tile_rooms.h"

namespace penstock::offload {
namespace {

constexpr size_t kMaxTilesInFlight = 4;
constexpr Bytes kMaxMemory = 256_MiB;

class Checker {
 public:
  Checker(const StateReader& state, const TileReads& reads, const CheckProgress& progress,
          const TileVisitor& visit)
      : state_(state), reads_(reads), progress_(progress), visit_(visit) {}

  /// `memory`: of the size TileRoom. Threads: any.
  Status Check(TileId tile, std::span<std::byte> memory) EXCLUDES(mutex_) {
    const ShardLayout& layout = state_.layout();
    const auto [weight, record] = PartsIn(memory, layout, tile);
    PartTickets reads;
    reads.weight = reads_.Submit(Part::kWeight, tile, weight);
    if (!record.empty()) reads.record = reads_.Submit(Part::kRecord, tile, record);
    const bool weight_holds = CheckPart(Part::kWeight, tile, reads.weight.Wait(), weight);
    const bool record_holds =
        CheckPart(Part::kRecord, tile, record.empty() ? Status() : reads.record.Wait(), record);
    if (visit_ && weight_holds && record_holds) visit_(tile, weight, record);
    MutexLock lock(mutex_);
    check_.read += Bytes{weight.size() + record.size()};
    return progress_(check_.read, layout.weight_bytes() + layout.record_bytes());
  }

  StateCheck Finish() {
    MutexLock lock(mutex_);
    std::ranges::sort(found_);
    for (auto& [place, text] : found_) check_.damages.push_back(std::move(text));
    return std::move(check_);
  }

 private:
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
  const TileReads& reads_;
  const CheckProgress& progress_;
  const TileVisitor& visit_;
  Mutex mutex_;
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
  const ShardLayout& layout = state.layout();
  PENSTOCK_ASSIGN(const auto rooms,
                  TileRooms::Create(TileRoom(layout), kMaxMemory, kMaxTilesInFlight));
  PENSTOCK_ASSIGN(const Engines engines, CreateEngines(state.header().paths));
  PENSTOCK_ASSIGN(const auto reads, TileReads::Open(state, engines));
  Checker checker(state, *reads, progress, visit);
  PENSTOCK_TRY(
      ForEachIndex(layout.tiles.size(), static_cast<int>(rooms->count()), [&](size_t i) -> Status {
        const TileRooms::Lease room(*rooms);
        return checker.Check(layout.Tiles()[i], room.memory());
      }));
  StateCheck check = checker.Finish();
  const Status caller = state.VisitCaller(kNoVisitor);
  if (!caller.ok() && !IsReadDamage(caller.error())) return caller.error();
  if (caller.ok()) return check;
  check.damages.push_back(
      caller.error().message +
      (check.damages.empty() ? "; weights and moments are whole, and can be exported" : ""));
  return check;
}

}  // namespace penstock::offload
