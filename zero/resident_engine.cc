#include "zero/resident_engine.h"

#include <algorithm>
#include <cstring>

#include "zero/memory_plan.h"
#include "zero/partitioner.h"
#include "zero/step_decision.h"
#include "zero/tile_planes.h"

namespace penstock::zero {

using offload::Index;
using offload::TileId;

ResidentEngine::ResidentEngine(EngineOptions options, offload::Layout layout,
                               kernels::Operators& operators)
    : options_(std::move(options)),
      layout_(std::move(layout)),
      operators_(operators),
      ledger_(Bytes{}, options_.host_memory, Bytes{}),
      norm_(layout_),
      host_finite_(layout_.tiles.size()) {}

Result<std::unique_ptr<Engine>> ResidentEngine::Create(EngineOptions options,
                                                       device::Device& device,
                                                       kernels::Operators& operators) {
  offload::Layout layout =
      MakeLayout(options.model, options.config.dtype, options.config.tile_elements);
  std::unique_ptr<ResidentEngine> engine(
      new ResidentEngine(std::move(options), std::move(layout), operators));
  PENSTOCK_TRY(engine->Build(device));
  return std::unique_ptr<Engine>(std::move(engine));
}

Status ResidentEngine::Build(device::Device& device) {
  PENSTOCK_ASSIGN(const MemoryLayout plan,
                  PlanMemory(options_.model, layout_, options_.config,
                             device.limit() - std::min(device.limit(), options_.device_reserved),
                             options_.host_memory));
  const HostBytes need = HostNeed(layout_, options_.config, plan.store);
  PENSTOCK_ASSIGN(Reservation reservation,
                  ledger_.Charge(Tier::kHost, MemoryClass::kStates, need.total()));
  reservations_.push_back(std::move(reservation));
  PENSTOCK_ASSIGN(slab_, offload::Slab::Create(need.total()));
  host_weight_ = slab_->Cut(need.parameters);
  host_record_ = slab_->Cut(need.states);
  PENSTOCK_ASSIGN(io_, StateIo::Create(options_, layout_));
  PENSTOCK_TRY(io_.RegisterBuffers(slab_->bytes()));

  compute_ = device.CreateStream("compute");
  for (const offload::ModuleLayout& module : layout_.modules) {
    Module buffers;
    PENSTOCK_ASSIGN(buffers.weights,
                    device.Allocate(layout_.WeightBytes(module.elements), "parameters"));
    PENSTOCK_ASSIGN(buffers.records,
                    device.Allocate(layout_.RecordBytes(module.elements), "optimizer states"));
    PENSTOCK_ASSIGN(buffers.gradients,
                    device.Allocate(layout_.GradientBytes(module.elements), "gradients"));
    modules_.push_back(std::move(buffers));
  }
  PENSTOCK_ASSIGN(sums_, DeviceGradients::Create(options_.model, layout_, device));
  PENSTOCK_ASSIGN(
      block_sums_,
      device.Allocate(Bytes{sizeof(double)} * (layout_.elements() / kBlockElements), "block sums"));
  PENSTOCK_ASSIGN(finite_,
                  device.Allocate(Bytes{sizeof(uint32_t)} * layout_.tiles.size(), "finite flags"));
  return {};
}

std::byte* ResidentEngine::WeightOf(TileId tile) const {
  const offload::TileLayout& place = layout_.tile(tile);
  return modules_[Index(place.module)].weights.data() + layout_.WeightBytes(place.begin).value;
}

std::byte* ResidentEngine::RecordOf(TileId tile) const {
  const offload::TileLayout& place = layout_.tile(tile);
  return modules_[Index(place.module)].records.data() + layout_.RecordBytes(place.begin).value;
}

std::byte* ResidentEngine::GradientOf(TileId tile) const {
  const offload::TileLayout& place = layout_.tile(tile);
  return modules_[Index(place.module)].gradients.data() + layout_.GradientBytes(place.begin).value;
}

Status ResidentEngine::Initialize(const TensorSource& source) {
  for (size_t i = 0; i < layout_.tiles.size(); ++i) {
    const TileId tile{static_cast<uint32_t>(i)};
    const uint64_t elements = layout_.tile(tile).elements;
    const auto weight = host_weight_.first(layout_.WeightBytes(elements).value);
    const auto record = host_record_.first(layout_.RecordBytes(elements).value);
    std::memset(weight.data(), 0, weight.size());
    std::memset(record.data(), 0, record.size());
    PENSTOCK_TRY(FillTileFrom(source, layout_, tile, weight, record));
    compute_->CopyToDevice(WeightOf(tile), weight.data(), Bytes{weight.size()});
    compute_->CopyToDevice(RecordOf(tile), record.data(), Bytes{record.size()});
    PENSTOCK_TRY(compute_->Synchronize());
  }
  io_.init_bytes = io_.written();
  return {};
}

Result<const std::byte*> ResidentEngine::Acquire(ModuleId module) {
  const std::vector<ModuleUse>& step = options_.model.step;
  const ModuleId expected = step[next_use_ % step.size()].module;
  if (expected != module) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "module {} was acquired where the model declared {}; acquire modules in the "
                     "order of ModelSpec::step",
                     layout_.module(module).name, layout_.module(expected).name);
  }
  ++next_use_;
  return modules_[Index(module)].weights.data();
}

Status ResidentEngine::ReduceGradients(ModuleId module) {
  const offload::ModuleLayout& tiles = layout_.module(module);
  const float* sums = sums_->Finish(module);
  ++reduced_;
  operators_.RoundGradients(*compute_, sums, layout_.dtype, tiles.elements,
                            modules_[Index(module)].gradients.data());
  for (uint32_t i = 0; i < tiles.tile_count; ++i) {
    const TileId tile{static_cast<uint32_t>(Index(tiles.first_tile)) + i};
    const std::span<double> on_host = norm_.Sums(tile);
    const ptrdiff_t first_block = on_host.data() - norm_.Sums(TileId{0}).data();
    double* on_device = block_sums_.as<double>() + first_block;
    uint32_t* finite = finite_.as<uint32_t>() + Index(tile);
    operators_.BlockSums(*compute_, GradientOf(tile), layout_.dtype, layout_.tile(tile).elements,
                         on_device, finite);
    compute_->CopyToHost(reinterpret_cast<std::byte*>(on_host.data()),
                         reinterpret_cast<const std::byte*>(on_device),
                         Bytes{on_host.size_bytes()});
    uint32_t* host_finite = &host_finite_[Index(tile)];
    compute_->CopyToHost(reinterpret_cast<std::byte*>(host_finite),
                         reinterpret_cast<const std::byte*>(finite), Bytes{sizeof(uint32_t)});
    compute_->Call([this, host_finite]() { norm_.Arrived(*host_finite != 0); });
  }
  return {};
}

void ResidentEngine::UpdateTile(TileId tile, const GroupScalars& scalars) {
  const offload::TileLayout& place = layout_.tile(tile);
  operators_.Adam(*compute_, scalars[static_cast<size_t>(place.group)],
                  PlanesOf(layout_.dtype, place.elements, WeightOf(tile), RecordOf(tile),
                           GradientOf(tile), 0, place.elements));
  ++updates_;
}

Result<StepOutcome> ResidentEngine::Step(double lr, uint64_t t) {
  PENSTOCK_CHECK(reduced_ == layout_.modules.size(),
                 "a step ended with the gradients of {} of {} modules reduced", reduced_,
                 layout_.modules.size());
  reduced_ = 0;
  PENSTOCK_TRY(compute_->Synchronize());
  PENSTOCK_ASSIGN(const StepDecision decision, DecideStep(options_.config, norm_.Wait()));
  if (decision.outcome.skipped) return decision.outcome;
  const GroupScalars scalars =
      MakeGroupScalars(options_.config.optimizer.adam, lr, t, decision.grad_scale);
  for (size_t i = 0; i < layout_.tiles.size(); ++i) {
    UpdateTile(TileId{static_cast<uint32_t>(i)}, scalars);
  }
  ++version_;
  if (!options_.config.overlap) PENSTOCK_TRY(compute_->Synchronize());
  return decision.outcome;
}

Result<offload::CommittedTile> ResidentEngine::WriteTile(TileId tile) {
  const uint64_t elements = layout_.tile(tile).elements;
  const auto weight = host_weight_.first(layout_.WeightBytes(elements).value);
  const auto record = host_record_.first(layout_.RecordBytes(elements).value);
  compute_->CopyToHost(weight.data(), WeightOf(tile), Bytes{weight.size()});
  compute_->CopyToHost(record.data(), RecordOf(tile), Bytes{record.size()});
  PENSTOCK_TRY(compute_->Synchronize());
  const int slot = io_.file->WriteSlot(tile);
  const auto write = [&](FileOffset offset, std::span<std::byte> part) {
    return io_.engine->Submit({.operation = aio::Operation::kWrite,
                               .file = &io_.file->file(),
                               .offset = offset,
                               .buffer = part,
                               .priority = aio::Priority::kWriteBack});
  };
  const aio::Ticket writes[] = {write(io_.file->WeightOffset(tile, slot), weight),
                                write(io_.file->RecordOffset(tile, slot), record)};
  PENSTOCK_TRY(aio::WaitAll(writes));
  const uint64_t seed = offload::TileSeed(io_.file->uuid(), tile, version_);
  return offload::CommittedTile{
      .version = version_,
      .checksums = {.weight = offload::WeightChecksum(seed, weight),
                    .record = offload::RecordChecksum(seed, layout_.dtype, elements, record)},
      .slot = static_cast<uint32_t>(slot)};
}

Status ResidentEngine::Commit(const TrainState& state) {
  PENSTOCK_TRY(Drain());
  const uint64_t before = io_.written();
  std::vector<offload::CommittedTile> tiles = committed_;
  if (tiles.empty() || tiles.front().version != version_) {
    PENSTOCK_TRY(io_.file->PrepareWrites());
    tiles.clear();
    for (size_t i = 0; i < layout_.tiles.size(); ++i) {
      PENSTOCK_ASSIGN(const offload::CommittedTile tile,
                      WriteTile(TileId{static_cast<uint32_t>(i)}));
      tiles.push_back(tile);
    }
  }
  offload::CommitRecord record = MakeRecord(state);
  record.tiles = tiles;
  PENSTOCK_TRY(io_.file->Commit(std::move(record)));
  committed_ = std::move(tiles);
  io_.commit_bytes += io_.written() - before;
  return {};
}

EngineCounters ResidentEngine::counters() const {
  EngineCounters counters = io_.Counters();
  counters.updates = updates_;
  return counters;
}

}  // namespace penstock::zero
