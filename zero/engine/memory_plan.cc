#include "zero/engine/memory_plan.h"

#include <algorithm>

#include "offload/commit_verifier.h"
#include "offload/slab.h"
#include "offload/tile_spread.h"
#include "zero/engine/device_figures.h"
#include "zero/exchange/gradient_exchange.h"
#include "zero/exchange/norm_exchange.h"
#include "zero/exchange/rounded_gradients.h"
#include "zero/exchange/step_losses.h"
#include "zero/exchange/zero_counts.h"
#include "zero/plan/gradient_batches.h"
#include "zero/plan/partitioner.h"
#include "zero/plan/schedule_builder.h"
#include "zero/plan/use_order.h"
#include "zero/states/trust_sums.h"

namespace penstock::zero {
namespace {

using offload::ShardLayout;
using offload::TileStoreOptions;

Bytes OnDevice(Bytes size) { return AlignUp(size, device::kDeviceAlignment); }
constexpr Bytes kPage = 4_KiB;  // what a mapping is rounded up to
Bytes Mapped(Bytes size) { return AlignUp(size, kPage); }
Bytes InSlab(Bytes size) { return AlignUp(size, offload::kSlabAlignment); }

/// Of the heap, at most: the layouts, the queues and tables of the tile store and of the state
/// file, the places of a commit as it is made, and a module's tensors with their names. Measured:
/// 0.6 KiB and 9 KiB; tests/zero/engine/engine_memory_test.cc looks at every large one.
constexpr Bytes kTileBookkeeping{1536};
constexpr Bytes kModuleBookkeeping = 24_KiB;

Bytes Bookkeeping(const ShardLayout& layout, const config::Config& config, const MemoryPlan& plan) {
  const Bytes exchanged =
      StepLosses::HostNeed(config.gradient_accumulation_steps, layout.world_size) +
      Mapped(ZeroCounter::Need(layout, config)) +
      (layout.world_size > 1 ? Mapped(NormExchange::Need(layout, TakesTwoPasses(config))) : 0_B) +
      (TakesTwoPasses(config) ? Mapped(TrustBlocks::Need(layout)) : 0_B);
  const Bytes verified = plan.verification.on ? Mapped(offload::CommitVerifier::Room(layout)) : 0_B;
  return kTileBookkeeping * layout.tiles.size() + kModuleBookkeeping * layout.model.modules.size() +
         BlockSumsOf(layout) + exchanged + verified;
}

/// The least blocks of each home, and the homes: on the host the whole region is one home.
TileStoreOptions MinimumStore(const config::Config& config) {
  // A weight on the device has its lower copy where the optimizer states are.
  const Tier weights =
      config.parameter_home == Tier::kDevice ? config.optimizer_home : config.parameter_home;
  return {.weight_home = weights,
          .record_home = config.optimizer_home,
          .weight_blocks = 2,
          .record_blocks = 1,
          .verify_checksums = config.verify_checksums,
          .passes = TakesTwoPasses(config) ? 2U : 1U};
}

uint32_t MinimumSlots(const ModelSpec& model, const ShardLayout& layout,
                      const config::Config& config) {
  const uint32_t repeated = CountRepeated(model, layout).count;
  return config.parameter_home == Tier::kDevice ? repeated : std::min(repeated, 1U);
}

MemoryPlan MinimumPlan(const ModelSpec& model, const ShardLayout& layout,
                       const config::Config& config) {
  const TileStoreOptions store = MinimumStore(config);
  return {.shared_slots = MinimumSlots(model, layout, config),
          .store = store,
          .verification = PlanCommitVerification(layout, config, store)};
}

/// The bytes that one more pair of blocks costs; zero if no home is on the drive.
Bytes PairBytes(const ShardLayout& layout, const TileStoreOptions& store) {
  Bytes pair;
  if (store.weight_home == Tier::kNvme) pair += InSlab(layout.largest_weight());
  if (store.record_home == Tier::kNvme) pair += InSlab(layout.largest_record());
  return pair;
}

/// What is above the minimum, in the order of what it is worth: a window of weight blocks, as
/// weights stay from their backward to their update while others are fetched; pairs of blocks, so
/// many that the drives always have reads and writes; tiles at home, each of which saves a step the
/// reading and the writing of itself; and what is left, for reading states ahead.
class HostBudget {
 public:
  HostBudget(const ShardLayout& layout, const config::Config& config, Bytes available,
             MemoryPlan& plan)
      : layout_(layout), config_(config), available_(available), plan_(plan), store_(plan.store) {}

  void Spend() {
    const uint64_t tiles = layout_.tiles.size();
    if (tiles == 0) return;
    if (IsResident(config_)) {
      const Bytes pair = InSlab(layout_.largest_weight()) + InSlab(layout_.largest_record());
      AddBlocks(std::min(Streaming(pair), tiles - 1), pair,
                [this](uint64_t count) { store_.record_blocks += count; });
      return;
    }
    if (config_.tier_split && AllTilesFit()) {
      store_.host_tiles = tiles;
      return;
    }
    if (store_.weight_home == Tier::kNvme) {
      AddBlocks(std::min<uint64_t>(2 * layout_.most_tiles(), tiles),
                InSlab(layout_.largest_weight()),
                [this](uint64_t count) { store_.weight_blocks += count; });
    }
    const Bytes pair = PairBytes(layout_, store_);
    if (pair.value == 0) return;
    const auto add_pairs = [this](uint64_t count) {
      store_.weight_blocks += count;
      store_.record_blocks += count;
    };
    AddBlocks(std::min(Streaming(pair), tiles - 1), pair, add_pairs);
    if (config_.tier_split) AddHostTiles();
    AddBlocks(tiles - std::min<uint64_t>(tiles, store_.record_blocks), pair, add_pairs);
  }

 private:
  /// Pairs of blocks with which the drives always have reads and writes: of each drive as many as
  /// its queue holds, and one more that waits, in each direction; and no fewer than one that is
  /// read, one behind it or being updated, one that is written and one behind it.
  uint64_t Streaming(Bytes pair) const {
    const Bytes in_flight = config_.aio.block_size * static_cast<uint64_t>(config_.aio.queue_depth);
    const uint64_t drives = std::max<size_t>(1, config_.nvme_paths.size());
    return drives * std::max<uint64_t>(4, 2 * (in_flight / pair + 1));
  }
  bool AllTilesFit() const {
    MemoryPlan all = plan_;
    all.store.host_tiles = layout_.tiles.size();
    return HostNeed(layout_, config_, all).total() <= available_;
  }
  Bytes Left() const { return available_ - HostNeed(layout_, config_, plan_).total(); }
  template <typename Add>
  void AddBlocks(uint64_t most, Bytes size, Add add) {
    add(std::min(Left() / size, most));
  }
  void AddHostTiles() {
    Bytes left = Left();
    for (const offload::TileId tile : offload::HostTileOrder(layout_)) {
      Bytes size;
      if (store_.weight_home == Tier::kNvme) size += InSlab(layout_.WeightBytes(tile));
      if (store_.record_home == Tier::kNvme) size += InSlab(layout_.RecordBytes(tile));
      if (size > left) return;
      left -= size;
      ++store_.host_tiles;
    }
  }

  const ShardLayout& layout_;
  const config::Config& config_;
  const Bytes available_;
  const MemoryPlan& plan_;
  TileStoreOptions& store_;  ///< the plan's store options
};

void SpendHost(const ShardLayout& layout, const config::Config& config, Bytes available,
               MemoryPlan& plan) {
  const TileStoreOptions least = plan.store;
  HostBudget(layout, config, available, plan).Spend();
  const bool counted = plan.verification.on;
  plan.verification = PlanCommitVerification(layout, config, plan.store);
  if (plan.verification.on == counted) return;
  plan.store = least;
  HostBudget(layout, config, available, plan).Spend();
}

/// The sums of gradients where one rank trains alone: of each module that is not repeated, and of
/// the largest that is; once more for a micro-batch's, if those are rounded.
Bytes SumsOfOneRank(const ModelSpec& model, const ShardLayout& layout,
                    const config::Config& config) {
  Bytes sums;
  for (const ModuleId id : offload::Ids<ModuleId>(layout.model.modules.size())) {
    if (model.modules[offload::Index(id)].repeated) continue;
    sums += OnDevice(4_B * layout.model.TrainedElements(id));
  }
  const RepeatedModules repeated = CountRepeated(model, layout);
  if (repeated.count > 0) sums += OnDevice(4_B * repeated.trained_elements);
  if (!RoundsMicroBatches(config)) return sums;
  return sums * 2 + OnDevice(RoundedGradients::RoundedNeed(layout, config.communication));
}

/// Adds what an engine needs that adds up gradients and exchanges them.
void AddExchanges(const ModelSpec& model, const ShardLayout& layout, const config::Config& config,
                  const MemoryPlan& plan, DeviceBytes& need) {
  need.exchange +=
      OnDevice(StepLosses::DeviceNeed(config.gradient_accumulation_steps, layout.world_size)) +
      OnDevice(ZeroCounter::Need(layout, config));
  if (layout.world_size == 1) {
    need.gradients += SumsOfOneRank(model, layout, config);
    return;
  }
  need.exchange += GradientExchange::DeviceNeed(
                       model, layout, ExchangeOptions::Of(config, plan.gradient_buffers)) +
                   OnDevice(NormExchange::Need(layout, TakesTwoPasses(config)));
}

std::string Sum(std::initializer_list<std::pair<const char*, Bytes>> parts) {
  std::string text;
  for (const auto& [name, size] : parts) {
    if (size.value == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : " + ", name, ToString(size));
  }
  return text;
}

}  // namespace

bool IsResident(const config::Config& config) { return config.optimizer_home == Tier::kDevice; }

ModuleBytes BytesOf(const ShardLayout& layout, ModuleId module) {
  ModuleBytes size;
  for (const offload::TileId tile : layout.TilesOf(module)) {
    size.records += layout.RecordBytes(tile);
    size.gradients += layout.GradientBytes(tile);
  }
  return size;
}

Bytes GradientStaging(const ModelSpec& model, const ShardLayout& layout, const MemoryPlan& plan) {
  return plan.stages_layers ? LayerGradientStaging(model, layout) : LeastGradientStaging(layout);
}

Bytes BlockSumsOf(const ShardLayout& layout) {
  return Bytes{sizeof(double)} * (layout.shard_elements() / kBlockElements);
}

DeviceBytes DeviceNeed(const ModelSpec& model, const ShardLayout& layout,
                       const config::Config& config, const MemoryPlan& plan) {
  DeviceBytes need;
  const RepeatedModules repeated = CountRepeated(model, layout);
  if (!model.gives_gradients) AddExchanges(model, layout, config, plan, need);
  for (const ModuleId id : offload::Ids<ModuleId>(layout.model.modules.size())) {
    if (IsResident(config)) {
      const ModuleBytes size = BytesOf(layout, id);
      need.parameters += OnDevice(layout.SlotBytes(id));
      need.states += OnDevice(size.records);
      need.gradients += OnDevice(size.gradients);
    } else if (!model.modules[offload::Index(id)].repeated) {
      need.parameters += OnDevice(layout.SlotBytes(id));
    }
  }
  if (IsResident(config)) {
    need.gradients += OnDevice(DeviceFigures::Need(layout));
  } else {
    need.parameters += OnDevice(repeated.slot) * plan.shared_slots;
    need.gradients += OnDevice(GradientStaging(model, layout, plan));
  }
  return need;
}

HostBytes HostNeed(const ShardLayout& layout, const config::Config& config,
                   const MemoryPlan& plan) {
  const TileStoreOptions& store = plan.store;
  const Bytes weight = InSlab(layout.largest_weight());
  const Bytes record = InSlab(layout.largest_record());
  if (IsResident(config)) {
    return {.parameters = weight * store.record_blocks,
            .gradients = {},
            .states = record * store.record_blocks,
            .bookkeeping = Bookkeeping(layout, config, plan) + Mapped(DeviceFigures::Need(layout))};
  }
  HostBytes need;
  need.bookkeeping = Bookkeeping(layout, config, plan);
  need.gradients = InSlab(layout.gradient_bytes());
  need.parameters = store.weight_home == Tier::kHost ? InSlab(layout.weight_bytes())
                                                     : weight * store.weight_blocks;
  need.states = store.record_home == Tier::kHost ? InSlab(layout.record_bytes())
                                                 : record * store.record_blocks;
  const std::vector<offload::TileId> tiles = offload::HostTileOrder(layout);
  for (size_t i = 0; i < store.host_tiles; ++i) {
    if (store.weight_home == Tier::kNvme) need.parameters += InSlab(layout.WeightBytes(tiles[i]));
    if (store.record_home == Tier::kNvme) need.states += InSlab(layout.RecordBytes(tiles[i]));
  }
  return need;
}

MemoryMinimum MinimumMemory(const ModelSpec& model, const ShardLayout& layout,
                            const config::Config& config) {
  const MemoryPlan plan = MinimumPlan(model, layout, config);
  const DeviceBytes device = DeviceNeed(model, layout, config, plan);
  const HostBytes host = HostNeed(layout, config, plan);
  return {.device_minimum = device.total(),
          .host_minimum = host.total(),
          .device_sum = Sum({{"parameters", device.parameters},
                             {"gradients", device.gradients},
                             {"optimizer states", device.states},
                             {"exchanges", device.exchange}}),
          .host_sum = Sum({{"parameters", host.parameters},
                           {"gradients", host.gradients},
                           {"optimizer states", host.states},
                           {"bookkeeping", host.bookkeeping}})};
}

Result<MemoryPlan> PlanMemory(const ModelSpec& model, const ShardLayout& layout,
                              const config::Config& config, Bytes device_available,
                              Bytes host_available) {
  const MemoryMinimum minimum = MinimumMemory(model, layout, config);
  if (minimum.device_minimum > device_available) {
    return MakeError(ErrorCode::kBudget,
                     "device memory: {} need {}, but only {} are left for them; raise the device "
                     "memory by {} bytes",
                     minimum.device_sum, ToString(minimum.device_minimum),
                     ToString(device_available), (minimum.device_minimum - device_available).value);
  }
  if (minimum.host_minimum > host_available) {
    return MakeError(
        ErrorCode::kBudget,
        "host memory: {} need {} bytes, but only {} are left for them; raise the host memory "
        "by {} bytes",
        minimum.host_sum, minimum.host_minimum.value, ToString(host_available),
        (minimum.host_minimum - host_available).value);
  }
  MemoryPlan plan = MinimumPlan(model, layout, config);
  const uint32_t repeated = CountRepeated(model, layout).count;
  const auto fits = [&](const MemoryPlan& larger) {
    return DeviceNeed(model, layout, config, larger).total() <= device_available;
  };
  // An exchange beside the next gradient's kernels is worth more than a copy that is saved.
  MemoryPlan larger = plan;
  larger.gradient_buffers = 2;
  if (layout.world_size > 1 && repeated > 0 && fits(larger)) plan = larger;
  if (IsResident(config)) {
    SpendHost(layout, config, host_available, plan);
    return plan;
  }
  const auto add_slots = [&](uint32_t most) {
    for (larger = plan; plan.shared_slots < most; plan = larger) {
      ++larger.shared_slots;
      if (!fits(larger)) break;
    }
  };
  // With a second slot the weights of two uses of a layer arrive beside kernels; with staging its
  // gradient leaves beside them; a further slot saves a copy that is hidden already.
  add_slots(std::min(repeated, 2U));
  larger = plan;
  larger.stages_layers = true;
  if (fits(larger)) plan = larger;
  add_slots(repeated);
  SpendHost(layout, config, host_available, plan);
  return plan;
}

MemoryMinimum Engine::MinimumMemory(const ModelSpec& model, const config::Config& config,
                                    const comm::World& world) {
  const ModelSpec ordered = WithOrder(model).value();
  return zero::MinimumMemory(ordered, MakeLayout(ordered, config, world), config);
}

}  // namespace penstock::zero
