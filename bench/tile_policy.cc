// What do the policy's decisions cost, for each tile and step?
//
// One thread runs offload::TilePolicy in virtual time: a model of 64 layers, every state on the
// drive, blocks for a few layers, clipping on (updates begin at the end of a step). The drive, the
// device and the optimizer take no time, so only the policy and a small loop around it are
// measured.
//
//   tile_policy [TILES [STEPS]]     default: 195, 9275, 37000 and 167000 tiles, 3 steps each
//
// Prints for each number of tiles: microseconds a tile and step over all events, and events a tile.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <utility>
#include <vector>

#include "offload/layout.h"
#include "offload/schedule.h"
#include "offload/tile_policy.h"

namespace penstock::offload {
namespace {

constexpr uint32_t kLayers = 64;

ShardLayout LayoutOf(uint32_t tiles) {
  ModelLayout model{.groups = DecayGroups(MakePlanes(DType::kBFloat16))};
  uint64_t before = 0;
  for (uint32_t module = 0; module < kLayers; ++module) {
    const uint64_t end = uint64_t{tiles} * (module + 1) / kLayers;
    model.modules.push_back(
        MakeModule("layer", {{.name = "weight", .shape = {(end - before) * kBlockElements}}}));
    before = end;
  }
  return MakeShard(std::move(model), kBlockElements);
}

Schedule ForthAndBack(const ShardLayout& layout) {
  Schedule schedule;
  for (uint32_t use = 0; use < 2 * kLayers; ++use) {
    const bool backward = use >= kLayers;
    const uint32_t module = backward ? 2 * kLayers - 1 - use : use;
    schedule.uses.push_back({.module = ModuleId{module}, .fetch = true, .backward = backward});
  }
  for (uint32_t module = 0; module < kLayers; ++module) {
    schedule.first_use.push_back(module);
    schedule.update_at.push_back(schedule.length() + module);
  }
  for (const TileId tile : layout.Tiles()) schedule.update_order.push_back(tile);
  schedule.load_order = schedule.update_order;
  return schedule;
}

/// A drive, a device and an optimizer that take no time.
class Machine {
 public:
  Machine(const ShardLayout& layout, const Schedule& schedule, const TilePolicyOptions& options)
      : layout_(layout), schedule_(schedule), policy_(layout, schedule, options) {}

  void Step() {
    for (const ScheduledUse& use : schedule_.uses) {
      policy_.SetTime(time_++);
      ++events_;
      for (const TileId tile : layout_.TilesOf(use.module)) {
        while (!policy_.TryPin(tile)) Work();
        policy_.Unpin(tile);
        events_ += 2;
        Work();
      }
    }
    policy_.SetTime(time_);
    for (const TileId tile : schedule_.update_order) policy_.Begin(tile);
    events_ += schedule_.update_order.size();
  }
  void Drain() {
    policy_.SetDraining(true);
    while (!policy_.settled()) Work();
  }
  uint64_t events() const { return events_; }

 private:
  using Done = void (TilePolicy::*)(TileId);

  /// One completion, and one update.
  void Work() {
    for (const TileAction& action : policy_.TakeActions()) {
      if (action.kind == TileAction::Kind::kEvictWeight ||
          action.kind == TileAction::Kind::kEvictRecord) {
        continue;
      }
      const bool record = action.kind == TileAction::Kind::kReadRecord;
      io_.emplace_back(record ? &TilePolicy::RecordRead : &TilePolicy::WeightRead, action.tile);
    }
    if (!io_.empty()) {
      const auto [done, tile] = io_.front();
      io_.pop_front();
      (policy_.*done)(tile);
      ++events_;
    }
    if (const auto tile = policy_.TakeUpdate()) {
      policy_.FinishUpdate(*tile);
      io_.emplace_back(&TilePolicy::WeightWritten, *tile);
      io_.emplace_back(&TilePolicy::RecordWritten, *tile);
      events_ += 2;
    }
  }

  const ShardLayout& layout_;
  const Schedule& schedule_;
  TilePolicy policy_;
  std::deque<std::pair<Done, TileId>> io_;
  uint64_t time_ = 0;
  uint64_t events_ = 0;
};

void Measure(uint32_t tiles, uint64_t steps) {
  const ShardLayout layout = LayoutOf(tiles);
  const Schedule schedule = ForthAndBack(layout);
  const size_t blocks = 4 * layout.most_tiles() + 2;
  const size_t ahead = blocks - layout.most_tiles() - 1;
  Machine machine(layout, schedule,
                  {.homes = std::vector<TileHome>(tiles),
                   .weight_blocks = blocks,
                   .record_blocks = 2 * layout.most_tiles() + 1,
                   .ahead_limit = ahead});
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t step = 0; step < steps; ++step) machine.Step();
  machine.Drain();
  const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
  const auto work = static_cast<double>(tiles) * static_cast<double>(steps);
  std::printf("%8u tiles: %6.2f us a tile and step, %5.1f events\n", tiles, time.count() / work,
              static_cast<double>(machine.events()) / work);
}

}  // namespace
}  // namespace penstock::offload

int main(int argc, char** argv) {
  const uint64_t steps = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 3;
  if (argc > 1) {
    const auto tiles = static_cast<uint32_t>(std::strtoul(argv[1], nullptr, 10));
    if (tiles < 64 || steps == 0) {
      std::fprintf(stderr, "tile_policy: give at least 64 tiles and 1 step\n");
      return 2;
    }
    penstock::offload::Measure(tiles, steps);
    return 0;
  }
  for (const uint32_t tiles : {195U, 9275U, 37000U, 167000U}) {
    penstock::offload::Measure(tiles, steps);
  }
  return 0;
}
