#include "zero/offload_engine.h"

#include <algorithm>
#include <utility>

#include "base/cpu_scope.h"
#include "base/for_each_index.h"
#include "base/thread.h"
#include "zero/partitioner.h"
#include "zero/schedule_builder.h"
#include "zero/step_decision.h"

namespace penstock::zero {

using offload::Index;
using offload::TileId;

OffloadEngine::OffloadEngine(EngineOptions options, offload::ShardLayout layout,
                             kernels::StateOperators& operators)
    : Engine(options.config.optimizer.initial_accumulator_value),
      options_(std::move(options)),
      layout_(std::move(layout)),
      operators_(operators),
      trace_(TraceOf(options_.meter)),
      ledger_(Bytes{}, options_.host_memory, Bytes{}),
      norm_(layout_) {}

Result<std::unique_ptr<Engine>> OffloadEngine::Create(EngineOptions options, device::Device& device,
                                                      kernels::StateOperators& operators) {
  offload::ShardLayout layout = MakeLayout(options.model, options.config);
  std::unique_ptr<OffloadEngine> engine(
      new OffloadEngine(std::move(options), std::move(layout), operators));
  PENSTOCK_TRY(engine->Build(device));
  return std::unique_ptr<Engine>(std::move(engine));
}

Status OffloadEngine::Build(device::Device& device) {
  PENSTOCK_ASSIGN(
      const MemoryLayout plan,
      PlanMemory(options_.model, layout_, options_.config,
                 device.limit() - std::min(device.limit(), options_.device_reserved),
                 options_.host_memory - std::min(options_.host_memory, options_.host_reserved)));
  schedule_ =
      BuildSchedule(options_.model, layout_, plan.shared_slots,
                    UpdatesWithGradients() ? UpdateStart::kGradient : UpdateStart::kStepEnd);
  PENSTOCK_TRY(BuildHost(plan, device));
  return BuildDevice(device);
}

Status OffloadEngine::BuildHost(const MemoryLayout& plan, device::Device& device) {
  const HostBytes need = HostNeed(options_.model, layout_, options_.config, plan.store);
  const std::pair<MemoryClass, Bytes> charges[] = {
      {MemoryClass::kParameters, need.parameters},
      {MemoryClass::kGradients, need.gradients},
      {MemoryClass::kStates, need.states},
      {MemoryClass::kScratch, need.bookkeeping},
      {MemoryClass::kActivations, options_.host_reserved}};
  for (const auto& [memory_class, size] : charges) {
    PENSTOCK_ASSIGN(Reservation reservation, ledger_.Charge(Tier::kHost, memory_class, size));
    reservations_.push_back(std::move(reservation));
  }
  PENSTOCK_ASSIGN(slab_, offload::Slab::Create(need.slab()));
  PENSTOCK_ASSIGN(io_, StateIo::Create(options_, layout_, device.pci_bus_id(), *slab_));
  PENSTOCK_ASSIGN(registration_, device.RegisterHost(slab_->bytes()));
  AddTierNotice(plan.store);
  store_ = std::make_unique<offload::TileStore>(layout_, schedule_, plan.store, *slab_, *io_.file);
  std::span<std::byte> gradients = slab_->Cut(layout_.gradient_bytes());
  for (const TileId tile : layout_.Tiles()) {
    const size_t size = layout_.GradientBytes(tile).value;
    gradients_.push_back(gradients.first(size));
    gradients = gradients.subspan(size);
  }
  const CpuScope optimizer(io_.threads.optimizer);
  PENSTOCK_ASSIGN(
      driver_, OptimizerDriver::Create(layout_, gradients_, *store_, norm_,
                                       std::max(1, io_.threads.counts.optimizer), options_.meter));
  return {};
}

/// Which share of the tiles lives where, where that is a choice.
void OffloadEngine::AddTierNotice(const offload::TileStoreOptions& store) {
  if (store.weight_home != Tier::kNvme && store.record_home != Tier::kNvme) return;
  uint64_t elements = 0;
  for (size_t i = 0; i < store.host_tiles; ++i) {
    elements += layout_.tile(schedule_.use_order[i]).elements;
  }
  const double share =
      100.0 * static_cast<double>(elements) / static_cast<double>(layout_.shard_elements());
  std::string reason = "penstock.tier_split is off";
  if (options_.config.tier_split) {
    reason = fmt::format("host memory of {} holds {} beside gradients and what is under way",
                         ToString(options_.host_memory),
                         store.host_tiles == layout_.tiles.size() ? "all" : "no more");
  }
  io_.notices.push_back(
      fmt::format("tier split: {} of {} tiles, {:.1f} % of the elements, live in host memory, the "
                  "rest on nvme; {}",
                  store.host_tiles, layout_.tiles.size(), share, reason));
}

Status OffloadEngine::BuildDevice(device::Device& device) {
  {
    // OpenMP's threads are started by the stream's, and inherit its CPUs.
    const CpuScope compute(io_.threads.compute);
    PENSTOCK_ASSIGN(compute_, device.CreateStream("compute"));
  }
  PENSTOCK_ASSIGN(executor_, offload::Executor::Create(layout_, schedule_, device, *compute_,
                                                       *store_, options_.meter));
  PENSTOCK_ASSIGN(sums_, DeviceGradients::Create(options_.model, layout_, device));
  const Bytes staging_bytes = layout_.largest_gradient();
  for (Staging& staging : staging_) {
    PENSTOCK_ASSIGN(staging.buffer, device.Allocate(staging_bytes, "staging of gradients"));
  }
  PENSTOCK_ASSIGN(copy_out_, device.CreateStream("copy-out"));
  if (trace_ != nullptr) {
    waits_ = trace_->AddRow(TraceGroup::kWaits, "waits for norm and commit");
    commits_ = trace_->AddRow(TraceGroup::kSteps, "commits");
  }
  return {};
}

Status OffloadEngine::FillTilesAtOnce(const TileFill& fill) {
  const CpuScope optimizer(io_.threads.optimizer);
  return FillTilesBy(io_.threads.counts.optimizer, fill);
}

Status OffloadEngine::FillTilesBy(int threads, const TileFill& fill) {
  PENSTOCK_TRY(ForEachIndex(layout_.tiles.size(), threads, [&](size_t i) {
    const TileId tile{static_cast<uint32_t>(i)};
    return store_->FillTile(tile,
                            [&](auto weight, auto record) { return fill(tile, weight, record); });
  }));
  PENSTOCK_TRY(store_->Drain());
  io_.init_bytes = io_.written();
  evictions_before_ = store_->evictions();
  store_->SetTime(0);
  return {};
}

Result<TrainState> OffloadEngine::Adopt() {
  PENSTOCK_CHECK(io_.adopted.has_value());
  PENSTOCK_TRY(store_->Adopt(*io_.adopted));
  version_ = offload::VersionOf(layout_, *io_.adopted);
  io_.EndSetup();
  store_->SetTime(0);
  return StateOf(*io_.adopted);
}

Result<const std::byte*> OffloadEngine::Acquire(ModuleId module) {
  return executor_->Acquire(module);
}

Status OffloadEngine::ReduceGradients(ModuleId module) {
  if (trace_ != nullptr) copy_out_->Name("gradients of " + layout_.module(module).name);
  const float* sums = sums_->Finish(module);
  if (UpdatesWithGradients()) PENSTOCK_TRY(LetUpdatesBegin());
  for (const TileId tile : layout_.TilesOf(module)) {
    if (!layout_.frozen(tile)) SendGradient(tile, sums);
  }
  return {};
}

void OffloadEngine::SendGradient(TileId tile, const float* sums) {
  const offload::TileLayout& place = layout_.tile(tile);
  Staging& staging = staging_[next_staging_];
  next_staging_ = (next_staging_ + 1) % staging_.size();
  compute_->Wait(staging.copied);
  operators_.RoundGradients(*compute_, sums + place.begin, layout_.GradientDType(tile),
                            place.elements, staging.buffer.data());
  copy_out_->Wait(compute_->Record());
  copy_out_->CopyToHost(gradients_[Index(tile)].data(), staging.buffer.data(),
                        layout_.GradientBytes(tile));
  staging.copied = copy_out_->Record();
  copy_out_->Call([this, tile]() { driver_->GradientArrived(tile); });
}

GradientNorm::Value OffloadEngine::WaitForNorm() {
  const TraceSpan span(trace_, waits_, "gradient norm");
  return norm_.Wait();
}

/// Serially, without overlap, updates come when everything else of the step is done.
bool OffloadEngine::UpdatesWithGradients() const {
  return options_.config.overlap && !NeedsAllGradients(options_.config);
}

UpdateScalars OffloadEngine::ScalarsOfStep(double grad_scale) const {
  return {options_.model.groups, options_.config.optimizer, options_.seed, lr_, t_, grad_scale};
}

Status OffloadEngine::BeginStep(double lr, uint64_t t) {
  lr_ = lr;
  t_ = t;
  updating_ = false;
  if (!UpdatesWithGradients()) return {};
  driver_->SetScalars(version_, ScalarsOfStep(1));
  return LetUpdatesBegin();
}

/// From here on a tile is updated when its gradient is there; not while a commit reads the tiles.
/// With one slot the first update takes the commit back, which whoever made it may still copy.
Status OffloadEngine::LetUpdatesBegin() {
  const bool commit_stands = committed_ && options_.config.durable;
  if (updating_ || (committing_ && !commit_stands)) return {};
  PENSTOCK_TRY(store_->PrepareUpdates());
  driver_->UpdateOnArrival();
  updating_ = true;
  return {};
}

Result<StepOutcome> OffloadEngine::EndStep() {
  executor_->EndStep();
  sums_->NextStep();
  PENSTOCK_TRY(compute_->Synchronize());
  PENSTOCK_TRY(executor_->Synchronize());
  PENSTOCK_TRY(copy_out_->Synchronize());
  PENSTOCK_CHECK(!committing_, "a step ended before the commit was finished");
  if (UpdatesWithGradients()) PENSTOCK_TRY(LetUpdatesBegin());
  PENSTOCK_ASSIGN(const StepDecision decision, DecideStep(options_.config, WaitForNorm()));
  driver_->EndStep();
  if (decision.outcome.skipped) return decision.outcome;
  if (!updating_) {
    driver_->SetScalars(version_, ScalarsOfStep(decision.grad_scale));
    PENSTOCK_TRY(store_->PrepareUpdates());
    store_->BeginUpdates();
  }
  ++version_;
  if (!options_.config.overlap) PENSTOCK_TRY(store_->Drain());
  return decision.outcome;
}

Status OffloadEngine::Drain() {
  PENSTOCK_TRY(compute_->Synchronize());
  return store_->Drain();
}

void OffloadEngine::BeginCommit(const TrainState& state, std::function<Status()> first) {
  PENSTOCK_CHECK(!committing_, "a commit was begun before the last one was finished");
  committing_ = true;
  committed_ = false;
  commit_ = [this, record = MakeRecord(state), first = std::move(first)]() {
    const TraceSpan span(trace_, commits_, fmt::format("commit of step {}", record.step));
    outcome_ = store_->Commit(record, [this, &first]() -> Status {
      PENSTOCK_TRY(driver_->CheckWeights());
      return first();
    });
    committed_ = true;
  };
  Result<std::thread> committer = StartThread("commits", commit_);
  if (committer.ok()) committer_ = *std::move(committer);  // else FinishCommit makes it
}

Status OffloadEngine::FinishCommit() {
  if (!std::exchange(committing_, false)) return {};
  const TraceSpan span(trace_, waits_, "commit");
  // Unless training has used every weight since, updates may need room that only Drain gives them.
  // Once the commit has ended, those of the next step may be under way, which it need not wait for.
  if (!committed_) static_cast<void>(store_->Drain());
  if (committer_.joinable()) {
    committer_.join();
  } else {
    commit_();
  }
  return outcome_;
}

EngineCounters OffloadEngine::counters() const {
  EngineCounters counters = io_.Counters(store_->written_back());
  counters.evictions = executor_->evictions() + store_->evictions() - evictions_before_;
  counters.updates = store_->updates_finished();
  return counters;
}

}  // namespace penstock::zero
