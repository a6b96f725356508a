#include "zero/engine/resident_engine.h"

#include <algorithm>

#include "kernels/state/state_operators.h"
#include "zero/engine/memory_plan.h"
#include "zero/lr_schedule.h"
#include "zero/plan/partitioner.h"
#include "zero/states/start_team.h"
#include "zero/states/tile_planes.h"

namespace penstock::zero {

using offload::Index;
using offload::TileId;

/// Of a commit: what a drive takes, with cores left to what is computed meanwhile.
constexpr int kMaxHashThreads = 4;

ResidentEngine::ResidentEngine(EngineOptions options, offload::ShardLayout layout,
                               kernels::StateOperators& operators)
    : options_(std::move(options)),
      layout_(std::move(layout)),
      operators_(operators),
      ledger_(Bytes{}, options_.host_memory, Bytes{}),
      groups_(options_.model.groups),
      norm_(layout_),
      trace_(TraceOf(options_.meter)) {}

Result<std::unique_ptr<Engine>> ResidentEngine::Create(EngineOptions options,
                                                       device::Device& device,
                                                       kernels::StateOperators& operators) {
  offload::ShardLayout layout = MakeLayout(options.model, options.config, options.world());
  std::unique_ptr<ResidentEngine> engine(
      new ResidentEngine(std::move(options), std::move(layout), operators));
  PENSTOCK_TRY(engine->Build(device));
  return std::unique_ptr<Engine>(std::move(engine));
}

Status ResidentEngine::Build(device::Device& device) {
  PENSTOCK_ASSIGN(const MemoryPlan plan, exchanges_.Plan(options_, layout_, device));
  const HostBytes need = HostNeed(layout_, options_.config, plan);
  PENSTOCK_ASSIGN(Reservation reservation,
                  ledger_.Charge(Tier::kHost, MemoryClass::kStates, need.total()));
  reservations_.push_back(std::move(reservation));
  PENSTOCK_ASSIGN(Reservation activations,
                  ledger_.Charge(Tier::kHost, MemoryClass::kActivations, options_.host_reserved));
  reservations_.push_back(std::move(activations));
  PENSTOCK_ASSIGN(slab_, offload::Slab::Create(need.slab()));
  for (size_t i = 0; i < plan.store.record_blocks; ++i) {
    blocks_.push_back({.weight = slab_->Cut(layout_.largest_weight()),
                       .record = slab_->Cut(layout_.largest_record())});
  }
  PENSTOCK_ASSIGN(io_, StateIo::Create(options_, layout_, ComputeDevice::Of(device), *slab_));
  const std::span<std::byte> blocks[] = {slab_->bytes()};
  PENSTOCK_TRY(io_.RegisterMemory(blocks, options_.state_folders));
  PENSTOCK_ASSIGN(registration_, device.RegisterHost(slab_->bytes()));
  PENSTOCK_ASSIGN(verifier_, io_.CreateVerifier(options_, layout_, plan.verification));

  PENSTOCK_ASSIGN(compute_, ComputeStream::Create(device, options_.compute_stream));
  for (const ModuleId module : offload::Ids<ModuleId>(layout_.model.modules.size())) {
    TileOffsets end;
    for (const TileId tile : layout_.TilesOf(module)) {
      offsets_.push_back(end);
      end.record += layout_.RecordBytes(tile);
      end.gradient += layout_.GradientBytes(tile);
    }
    Module buffers;
    PENSTOCK_ASSIGN(buffers.weights, device.Allocate(layout_.SlotBytes(module), "parameters"));
    PENSTOCK_ASSIGN(buffers.records, device.Allocate(end.record, "optimizer states"));
    PENSTOCK_ASSIGN(buffers.gradients, device.Allocate(end.gradient, "gradients"));
    modules_.push_back(std::move(buffers));
  }
  PENSTOCK_TRY(exchanges_.Build(options_, layout_, plan, device, operators_));
  PENSTOCK_ASSIGN(device_figures_,
                  DeviceFigures::Create(layout_, device, *compute_,
                                        [this](TileId tile) { return PlanesOnDevice(tile); }));
  if (TakesTwoPasses(options_.config)) trust_.emplace(layout_);
  PENSTOCK_ASSIGN(copy_out_, device.CreateStream("copy-out"));
  if (trace_ != nullptr) {
    waits_ = trace_->AddRow(TraceGroup::kWaits, "waits for norm and commit");
    commits_ = trace_->AddRow(TraceGroup::kSteps, "commits");
  }
  return {};
}

std::byte* ResidentEngine::WeightOf(TileId tile) const {
  const offload::TileLayout& place = layout_.tile(tile);
  return modules_[Index(place.module)].weights.data() +
         layout_.SlotOffset(place.module, place.begin).value;
}

std::byte* ResidentEngine::RecordOf(TileId tile) const {
  return modules_[Index(layout_.tile(tile).module)].records.data() +
         offsets_[Index(tile)].record.value;
}

std::byte* ResidentEngine::GradientOf(TileId tile) const {
  return modules_[Index(layout_.tile(tile).module)].gradients.data() +
         offsets_[Index(tile)].gradient.value;
}

/// Before its first use in a step, a module gets the weights that other ranks have updated. That
/// waits for its own update and not for the kernels before this use: a step begins when those of
/// the step before are done.
Result<const std::byte*> ResidentEngine::Acquire(ModuleId module) {
  Module& buffers = modules_[Index(module)];
  if (!std::exchange(buffers.whole, true) && exchanges_.gatherer() != nullptr) {
    compute_->Wait(exchanges_.gatherer()->Gather(module, buffers.weights.data(), buffers.updated),
                   device::WaitReason::kData);
  }
  return static_cast<const std::byte*>(buffers.weights.data());
}

Status ResidentEngine::ReduceGradients(ModuleId module) {
  PENSTOCK_ASSIGN(const FinishedSums finished, exchanges_.Finish(module, *compute_));
  sent_ += device_figures_->RoundAndSum(finished, module, norm_);
  return {};
}

kernels::OptimizerTile ResidentEngine::PlanesOnDevice(TileId tile) const {
  const offload::TileLayout& place = layout_.tile(tile);
  kernels::OptimizerTile planes =
      PlanesOf(layout_, tile, WeightOf(tile), RecordOf(tile), GradientOf(tile), 0, place.elements);
  planes.rounding.first_element = place.begin;
  return planes;
}

Status ResidentEngine::SumForTrust(UpdateScalars& scalars) {
  for (const ModuleId module : offload::Ids<ModuleId>(modules_.size())) {
    device_figures_->SumForTrust(*compute_, operators_, module, scalars);
  }
  PENSTOCK_TRY(compute_->Synchronize());
  device_figures_->TakeTrust(*trust_);
  PENSTOCK_ASSIGN(const std::vector<const kernels::TrustSums*> all,
                  exchanges_.GatherTrust(trust_->all()));
  scalars.SetTrust(trust_->ByTensor(all));
  return {};
}

Status ResidentEngine::BeginStep(double lr, uint64_t t) {
  lr_ = lr;
  t_ = t;
  sent_ = 0;
  for (Module& module : modules_) module.whole = false;
  exchanges_.BeginStep();
  return {};
}

Result<std::vector<HostGradient>> ResidentEngine::BeginHostGradients(ModuleId module) {
  return MakeError(
      ErrorCode::kUnavailable,
      "module {} has its gradients on the device, where its optimizer is; gradients in "
      "host memory need the optimizer there or on nvme (offload_optimizer)",
      layout_.module(module).name);
}

Status ResidentEngine::EndHostGradients(ModuleId module) {
  return BeginHostGradients(module).status();
}

Result<GradientNorm::Value> ResidentEngine::FinishGradients() {
  PENSTOCK_TRY(compute_->Synchronize());
  PENSTOCK_TRY(exchanges_.EndStep());
  const GradientNorm::Blocks blocks = norm_.WaitForBlocks();
  figures_ = device_figures_->Take();
  return exchanges_.Norm(blocks, figures_);
}

Status ResidentEngine::UpdateStep(double grad_scale) {
  PENSTOCK_CHECK(!commit_, "a step ended before the commit was finished");
  UpdateScalars scalars(groups_, options_.config.optimizer, options_.seed, lr_, t_, grad_scale,
                        CycledBetas(options_.config.scheduler, t_));
  if (trust_) PENSTOCK_TRY(SumForTrust(scalars));
  device_figures_->BeginUpdate(*compute_, scalars);
  for (const ModuleId module : offload::Ids<ModuleId>(modules_.size())) {
    updates_ += device_figures_->Update(*compute_, operators_, module, scalars);
    if (exchanges_.gatherer() != nullptr) modules_[Index(module)].updated = compute_->Record();
  }
  ++version_;
  lr_of_update_ = lr_;
  return options_.config.overlap ? Status() : compute_->Synchronize();
}

Status ResidentEngine::DropStep() {
  PENSTOCK_TRY(compute_->Synchronize());
  PENSTOCK_TRY(exchanges_.EndStep());
  norm_.Discard(sent_);
  return {};
}

/// What is not finite is found on the device, so that weights are copied to the host once. Between
/// steps the block sums of gradients are not needed.
Status ResidentEngine::CheckWeights(uint64_t step) {
  const std::optional<DestroyedTensor> destroyed =
      FirstDestroyed(layout_.model, device_figures_->LastUpdate());
  if (destroyed) return Destroyed(*destroyed, step, lr_of_update_);
  PENSTOCK_ASSIGN(const std::optional<TileId> tile,
                  device_figures_->FirstNotFinite(*compute_, operators_));
  return tile ? Status(NotFinite(layout_, *tile)) : Status();
}

/// Before anything is written: with one slot, the first write gives the last commit up.
Status ResidentEngine::PrepareCommit(const TrainState& state) {
  PENSTOCK_TRY(Drain());
  return committed_version_ == version_ ? Status() : CheckWeights(state.step);
}

void ResidentEngine::BeginCommit(const TrainState& state, std::function<Status()> first) {
  PENSTOCK_CHECK(!commit_, "a commit was begun before the last one was finished");
  commit_ = std::make_unique<PendingCommit>(
      [this, record = MakeRecord(state, options_.commit_session), first = std::move(first),
       prepared = PrepareCommit(state)]() -> Status {
        const TraceSpan span(trace_, commits_, fmt::format("commit of step {}", record.head.step));
        return prepared.ok() ? MakeCommit(record, first) : prepared;
      });
}

Status ResidentEngine::FinishCommit() {
  if (!commit_) return {};
  const std::unique_ptr<PendingCommit> commit = std::move(commit_);
  const TraceSpan span(trace_, waits_, "commit");
  Status finished = commit->Finish();
  io_.EndCommit(verifier_);
  return finished;
}

/// No update is enqueued before the commit is finished, so that tiles stay as they are.
Status ResidentEngine::WriteTiles(std::vector<offload::CommittedTile>& tiles) {
  PENSTOCK_TRY(io_.file->PrepareWrites());
  tiles.resize(layout_.tiles.size());
  TileWriter writer(layout_, *io_.file, *copy_out_, blocks_,
                    std::min(StartThreads(), kMaxHashThreads));
  for (const TileId tile : layout_.Tiles()) {
    if (layout_.frozen(tile) && committed_version_) continue;  // it is there
    if (options_.progressed) options_.progressed();
    PENSTOCK_TRY(writer.Write({.tile = tile,
                               .version = layout_.frozen(tile) ? 0 : version_,
                               .weight = WeightOf(tile),
                               .record = RecordOf(tile),
                               .committed = &tiles[Index(tile)]}));
  }
  return writer.Finish();
}

Status ResidentEngine::MakeCommit(offload::CommitRecord record,
                                  const std::function<Status()>& first) {
  PENSTOCK_TRY(first());
  const uint64_t step = record.head.step;
  std::vector<offload::CommittedTile> tiles = committed_;
  const bool changed = committed_version_ != version_;
  if (changed) PENSTOCK_TRY(WriteTiles(tiles));
  record.tiles = tiles;
  const auto still_good = [] { return Status(); };
  const auto verify = [&](const offload::CommitRecord& named) -> Status {
    if (verifier_ == nullptr || !changed) return {};
    return verifier_->Verify(named.tiles, [this](TileId tile, offload::Part) {
      return !layout_.frozen(tile) || !committed_version_;
    });
  };
  PENSTOCK_TRY(io_.file->Commit(std::move(record), still_good, verify));
  committed_ = std::move(tiles);
  committed_version_ = version_;
  return options_.vote ? options_.vote(step) : Status();
}

EngineCounters ResidentEngine::counters() const {
  EngineCounters counters = io_.Counters(/*step_bytes=*/0, verifier_.get());
  counters.updates = updates_;
  return counters;
}

}  // namespace penstock::zero
