#include "zero/engine/state_engine.h"

#include <algorithm>
#include <utility>

#include "base/cpu_scope.h"
#include "base/for_each_index.h"
#include "base/thread.h"
#include "offload/tile_spread.h"
#include "zero/lr_schedule.h"
#include "zero/plan/schedule_builder.h"
#include "zero/plan/step_decision.h"
#include "zero/states/start_team.h"

namespace penstock::zero {

using offload::TileId;

StateEngine::StateEngine(const EngineOptions& options, const offload::ShardLayout& layout)
    : options_(options),
      layout_(layout),
      with_gradients_(StartOfUpdates(options.config) == UpdateStart::kGradient),
      trace_(TraceOf(options.meter)),
      ledger_(Bytes{}, options.host_memory, Bytes{}),
      groups_(options.model.groups),
      norm_(layout),
      figures_(layout) {
  if (TakesTwoPasses(options.config)) trust_.emplace(layout);
}

Result<std::unique_ptr<StateEngine>> StateEngine::Create(const EngineOptions& options,
                                                         const offload::ShardLayout& layout,
                                                         const MemoryPlan& plan,
                                                         const ComputeDevice& device) {
  std::unique_ptr<StateEngine> engine(new StateEngine(options, layout));
  PENSTOCK_TRY(engine->Build(plan, device));
  return engine;
}

std::unique_ptr<offload::Schedule> StateEngine::PlanSchedule(const ModelSpec& model) const {
  return std::make_unique<offload::Schedule>(
      BuildSchedule(model, layout_, shared_slots_, StartOfUpdates(options_.config)));
}

Status StateEngine::Build(const MemoryPlan& plan, const ComputeDevice& device) {
  shared_slots_ = plan.shared_slots;
  schedule_ = PlanSchedule(options_.model);
  const HostBytes need = HostNeed(layout_, options_.config, plan);
  const std::pair<MemoryClass, Bytes> charges[] = {
      {MemoryClass::kParameters, need.parameters},
      {MemoryClass::kGradients, need.gradients},
      {MemoryClass::kStates, need.states},
      {MemoryClass::kActivations, options_.host_reserved},
      {MemoryClass::kScratch, need.bookkeeping}};
  for (const auto& [memory_class, size] : charges) {
    PENSTOCK_ASSIGN(Reservation reservation, ledger_.Charge(Tier::kHost, memory_class, size));
    reservations_.push_back(std::move(reservation));
  }
  PENSTOCK_ASSIGN(slab_, offload::Slab::Create(need.slab()));
  PENSTOCK_ASSIGN(io_, StateIo::Create(options_, layout_, device, *slab_));
  AddTierNotice(plan.store);
  PENSTOCK_ASSIGN(verifier_, io_.CreateVerifier(options_, layout_, plan.verification));
  offload::TileStoreOptions of_store = plan.store;
  of_store.hash_threads = std::max(1, io_.threads.counts.optimizer);
  of_store.progressed = options_.progressed;
  store_ = std::make_unique<offload::TileStore>(layout_, *schedule_, of_store, *slab_, *io_.file);
  // Commits alone write what is at home on the host: pinning all of it would take longer than they.
  const bool all = options_.config.aio.registered_buffers == aio::Registration::kOn;
  PENSTOCK_TRY(io_.RegisterMemory(all ? store_->state_memory() : store_->block_memory(),
                                  options_.state_folders));
  gradient_memory_ = slab_->Cut(layout_.gradient_bytes());
  std::span<std::byte> gradients = gradient_memory_;
  for (const TileId tile : layout_.Tiles()) {
    const size_t size = layout_.GradientBytes(tile).value;
    gradients_.push_back(gradients.first(size));
    gradients = gradients.subspan(size);
  }
  if (trace_ != nullptr) {
    waits_ = trace_->AddRow(TraceGroup::kWaits, "waits for norm and commit");
    commits_ = trace_->AddRow(TraceGroup::kSteps, "commits");
  }
  const CpuScope optimizer(io_.threads.optimizer);
  PENSTOCK_ASSIGN(driver_, OptimizerDriver::Create(layout_, gradients_, *store_, norm_, figures_,
                                                   std::max(1, io_.threads.counts.optimizer),
                                                   options_.meter, trust_ ? &*trust_ : nullptr));
  return {};
}

std::vector<std::span<std::byte>> StateEngine::copied_memory() const {
  std::vector<std::span<std::byte>> memory = store_->weight_memory();
  if (!gradient_memory_.empty()) memory.push_back(gradient_memory_);
  return memory;
}

/// Says which share of the tiles lives where, if that is a choice.
void StateEngine::AddTierNotice(const offload::TileStoreOptions& store) {
  if (store.weight_home != Tier::kNvme && store.record_home != Tier::kNvme) return;
  if (layout_.tiles.empty()) return;
  uint64_t elements = 0;
  const std::vector<offload::TileId> of_host = offload::HostTileOrder(layout_);
  for (size_t i = 0; i < store.host_tiles; ++i) elements += layout_.tile(of_host[i]).elements;
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

Status StateEngine::FillTiles(const TileFill& fill) {
  // Nothing computes or updates yet: all CPUs fill.
  PENSTOCK_TRY(ForEachIndex(layout_.tiles.size(), StartThreads(), [&](size_t i) {
    return FillTile(TileId{static_cast<uint32_t>(i)}, fill);
  }));
  return EndFill();
}

Status StateEngine::FillTile(TileId tile, const TileFill& fill) {
  return store_->FillTile(tile,
                          [&](auto weight, auto record) { return fill(tile, weight, record); });
}

Status StateEngine::EndFill() {
  PENSTOCK_TRY(store_->Drain());
  io_.init_bytes = io_.written();
  evictions_before_ = store_->evictions();
  store_->SetTime(0);
  return {};
}

Result<TrainState> StateEngine::Adopt() {
  if (!io_.adopted) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "there is no commit to resume from; name its files in EngineOptions::adopt");
  }
  PENSTOCK_TRY(store_->Adopt(*io_.adopted, StartThreads()));
  version_ = offload::VersionOf(layout_, *io_.adopted);
  io_.EndSetup();
  store_->SetTime(0);
  return StateOf(*io_.adopted);
}

void StateEngine::SetOrder(const StepOrder& order) {
  ModelSpec model = options_.model;
  model.step = order.uses;
  model.gradients = order.gradients;
  std::unique_ptr<offload::Schedule> schedule = PlanSchedule(model);
  store_->SetSchedule(*schedule);
  schedule_ = std::move(schedule);
}

void StateEngine::SetGroups(std::vector<GroupSpec> groups, double lr) {
  PENSTOCK_CHECK(!with_gradients_);
  groups_ = std::move(groups);
  lr_ = lr;
}

UpdateScalars StateEngine::ScalarsOfStep(double grad_scale) const {
  return {groups_,
          options_.config.optimizer,
          options_.seed,
          lr_,
          t_,
          grad_scale,
          CycledBetas(options_.config.scheduler, t_)};
}

Status StateEngine::BeginStep(double lr, uint64_t t) {
  lr_ = lr;
  t_ = t;
  arrived_ = 0;
  if (with_gradients_) driver_->SetScalars(version_, ScalarsOfStep(1));
  return PrepareUpdates();
}

/// No update begins while a commit reads the tiles, or after one that was not made: another rank
/// may have taken it back, and the updates would overwrite the commit before. With one slot the
/// first update takes the commit back, which the caller may still be copying, and which stands
/// while nothing is known of the forward.
Status StateEngine::PrepareUpdates() {
  if (!with_gradients_) return {};
  if (commit_ && !(commit_->made() && options_.config.durable)) return {};
  if (!options_.config.durable && !driver_->updates_allowed()) return {};
  PENSTOCK_TRY(store_->PrepareUpdates());
  driver_->PrepareUpdates();
  return {};
}

Result<std::vector<HostGradient>> StateEngine::BeginHostGradients(ModuleId module) {
  if (layout_.world_size > 1) {
    return MakeError(ErrorCode::kUnavailable,
                     "gradients on the host are those of one rank, and there are {}; give them to "
                     "the device, where the ranks add theirs",
                     layout_.world_size);
  }
  std::vector<HostGradient> gradients;
  for (const TileId tile : layout_.TrainedTilesOf(module)) {
    gradients.push_back({.tile = tile, .values = Gradient(tile)});
  }
  return gradients;
}

Status StateEngine::EndHostGradients(ModuleId module) {
  PENSTOCK_TRY(PrepareUpdates());
  GradientsArrived(layout_.TrainedTilesOf(module));
  return {};
}

Result<GradientNorm::Value> StateEngine::FinishGradients() {
  const GradientNorm::Blocks blocks = WaitForBlocks();
  figures_of_step_ = Figures();
  return GradientNorm::NormOf(blocks);
}

GradientNorm::Blocks StateEngine::WaitForBlocks() {
  PENSTOCK_CHECK(!commit_, "a step ended before the commit was finished");
  const TraceSpan span(trace_, waits_, "gradient norm");
  return norm_.WaitForBlocks();
}

StepFigures StateEngine::Figures() {
  StepFigures figures{.gradients = figures_.Gradients(), .updates = {}};
  if (updated_ && told_version_ != version_ - 1) {
    told_version_ = version_ - 1;
    figures.updates = figures_.Updates(version_ - 1);
  }
  return figures;
}

Status StateEngine::DropStep() {
  const bool updating = driver_->StopUpdates();
  norm_.Discard(arrived_);
  driver_->EndStep();
  if (!updating) return {};
  return MakeError(
      ErrorCode::kUnavailable,
      "the step was dropped after some tiles were updated with their gradients; "
      "resume from the last commit, or set gradient_clipping, with which updates wait for "
      "the end of the step");
}

Result<std::span<const kernels::TrustSums>> StateEngine::SumForTrust(double grad_scale) {
  const TraceSpan span(trace_, waits_, "first pass");
  driver_->SetScalars(version_, ScalarsOfStep(grad_scale));
  PENSTOCK_TRY(store_->MakeFirstPass());
  return trust_->all();
}

Status StateEngine::UpdateStep(double grad_scale) {
  if (!takes_two_passes()) return Update(grad_scale);
  PENSTOCK_ASSIGN(const std::span<const kernels::TrustSums> sums, SumForTrust(grad_scale));
  const kernels::TrustSums* const mine[] = {sums.data()};
  return Update(grad_scale, trust_->ByTensor(mine));
}

Status StateEngine::Update(double grad_scale, std::vector<kernels::TrustSums> trust) {
  PENSTOCK_TRY(store_->PrepareUpdates());
  if (with_gradients_) {
    driver_->AllowUpdates();
    driver_->PrepareUpdates();
  } else {
    UpdateScalars scalars = ScalarsOfStep(grad_scale);
    if (trust_) scalars.SetTrust(std::move(trust));
    driver_->SetScalars(version_, scalars);
    store_->BeginUpdates();
  }
  driver_->EndStep();
  ++version_;
  updated_ = true;
  lr_of_update_ = lr_;
  return options_.config.overlap ? Status() : store_->Drain();
}

Status StateEngine::SkipStep() {
  driver_->EndStep();
  return {};
}

/// No update begins before the commit has ended that calls it, so that the figures stand still.
Status StateEngine::CheckWeights(uint64_t step, const std::optional<LastUpdate>& last) const {
  if (last) {
    const std::vector<kernels::WeightFigures> figures = figures_.Updates(last->version);
    const std::optional<DestroyedTensor> destroyed = FirstDestroyed(layout_.model, figures);
    if (destroyed) return Destroyed(*destroyed, step, last->lr);
  }
  return driver_->CheckWeights();
}

void StateEngine::BeginCommit(const TrainState& state, std::function<Status()> first) {
  PENSTOCK_CHECK(!commit_, "a commit was begun before the last one was finished");
  auto make = [this, record = MakeRecord(state, options_.commit_session), first = std::move(first),
               step = state.step,
               last = updated_ ? std::optional(LastUpdate{version_ - 1, lr_of_update_})
                               : std::nullopt]() -> Status {
    const TraceSpan span(trace_, commits_, fmt::format("commit of step {}", record.head.step));
    const CpuScope optimizer(io_.threads.optimizer);
    const auto before = [&]() -> Status {
      PENSTOCK_TRY(CheckWeights(step, last));
      return first();
    };
    PENSTOCK_TRY(store_->Commit(record, before, verifier_.get()));
    return options_.vote ? options_.vote(record.head.step) : Status();
  };
  commit_ = std::make_unique<PendingCommit>(std::move(make));
}

Status StateEngine::FinishCommit() {
  if (!commit_) return {};
  const std::unique_ptr<PendingCommit> commit = std::move(commit_);
  const TraceSpan span(trace_, waits_, "commit");
  // Unless training has used every weight since, updates may need room that only Drain gives them.
  // Once the commit has ended, those of the next step may be under way, which it need not wait for.
  if (!commit->ended()) static_cast<void>(store_->Drain());
  Status finished = commit->Finish();
  io_.EndCommit(verifier_);
  return finished;
}

EngineCounters StateEngine::counters() const {
  EngineCounters counters = io_.Counters(store_->written_back(), verifier_.get());
  counters.evictions = store_->evictions() - evictions_before_;
  counters.updates = store_->updates_finished();
  return counters;
}

}  // namespace penstock::zero
