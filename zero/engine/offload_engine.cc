#include "zero/engine/offload_engine.h"

#include <algorithm>
#include <utility>

#include "base/cpu_scope.h"
#include "kernels/state/state_operators.h"
#include "zero/plan/partitioner.h"

namespace penstock::zero {

using offload::TileId;

OffloadEngine::OffloadEngine(EngineOptions options, offload::ShardLayout layout,
                             kernels::StateOperators& operators)
    : options_(std::move(options)), layout_(std::move(layout)), operators_(operators) {}

Result<std::unique_ptr<Engine>> OffloadEngine::Create(EngineOptions options, device::Device& device,
                                                      kernels::StateOperators& operators) {
  offload::ShardLayout layout = MakeLayout(options.model, options.config, options.world());
  std::unique_ptr<OffloadEngine> engine(
      new OffloadEngine(std::move(options), std::move(layout), operators));
  PENSTOCK_TRY(engine->Build(device));
  return std::unique_ptr<Engine>(std::move(engine));
}

Status OffloadEngine::Build(device::Device& device) {
  PENSTOCK_ASSIGN(const MemoryPlan plan, exchanges_.Plan(options_, layout_, device));
  PENSTOCK_ASSIGN(state_, StateEngine::Create(options_, layout_, plan, ComputeDevice::Of(device)));
  for (const std::span<std::byte> memory : state_->copied_memory()) {
    PENSTOCK_ASSIGN(device::HostRegistration registration, device.RegisterHost(memory));
    registrations_.push_back(std::move(registration));
  }
  return BuildDevice(plan, device);
}

Status OffloadEngine::BuildDevice(const MemoryPlan& plan, device::Device& device) {
  {
    // OpenMP's threads are started by the stream's, and inherit its CPUs.
    const CpuScope compute(state_->io().threads.compute);
    PENSTOCK_ASSIGN(compute_, ComputeStream::Create(device, options_.compute_stream));
  }
  PENSTOCK_TRY(exchanges_.Build(options_, layout_, plan, device, operators_));
  PENSTOCK_ASSIGN(executor_, offload::Executor::Create(
                                 layout_, state_->schedule(), device, *compute_, state_->store(),
                                 {.gatherer = exchanges_.gatherer(), .meter = options_.meter}));
  const Bytes staging = GradientStaging(options_.model, layout_, plan);
  PENSTOCK_ASSIGN(staging_, device.Allocate(staging, "staging of gradients"));
  ring_ = StagingRing<device::Event>(staging);
  PENSTOCK_ASSIGN(copy_out_, device.CreateStream("copy-out"));
  return {};
}

void OffloadEngine::SetOrder(const StepOrder& order) {
  state_->SetOrder(order);
  executor_->SetSchedule(state_->schedule());
}

Status OffloadEngine::BeginStep(double lr, uint64_t t) {
  exchanges_.BeginStep();
  return state_->BeginStep(lr, t);
}

Status OffloadEngine::GatherAhead() {
  return exchanges_.gatherer() == nullptr ? Status() : executor_->FetchAhead();
}

Status OffloadEngine::AddGradients(ModuleId module) {
  PENSTOCK_TRY(GatherAhead());
  return exchanges_.sums().Add(module, *compute_);
}

Status OffloadEngine::ReduceGradients(ModuleId module) {
  PENSTOCK_TRY(GatherAhead());  // a gradient that was not added is exchanged here
  if (options_.meter != nullptr && options_.meter->trace() != nullptr) {
    copy_out_->Name("gradients of " + layout_.module(module).name);
  }
  PENSTOCK_ASSIGN(const FinishedSums finished, exchanges_.Finish(module, *compute_));
  PENSTOCK_TRY(state_->PrepareUpdates());
  for (const StagedBatches& staged : StageModule(layout_, module, ring_.size())) {
    SendGradients(staged, finished);
  }
  return {};
}

/// What is reserved together waits once, for the copies of what it takes the place of.
void OffloadEngine::SendGradients(const StagedBatches& staged, const FinishedSums& finished) {
  const auto room = ring_.Reserve(staged.size);
  if (room.free) finished.stream->Wait(*room.free);
  std::byte* to = staging_.data() + room.begin.value;
  for (const GradientBatch& batch : staged.batches) {
    finished.operators->RoundGradients(*finished.stream, finished.sums + batch.begin, batch.dtype,
                                       batch.elements, to);
    to += StagedBytes(batch).value;
  }
  copy_out_->Wait(finished.stream->Record());
  const std::byte* from = staging_.data() + room.begin.value;
  for (const GradientBatch& batch : staged.batches) {
    CopyOut(batch, from);
    from += StagedBytes(batch).value;
  }
  ring_.Take(staged.size, copy_out_->Record());
}

void OffloadEngine::CopyOut(const GradientBatch& staged, const std::byte* from) {
  for (const GradientBatch& batch : CutBatch(layout_, staged)) {
    // Gradients lie in host memory in the order of the tiles.
    copy_out_->CopyToHost(state_->Gradient(batch.tiles[0]).data(), from, batch.size());
    copy_out_->Call([this, tiles = batch.tiles]() { state_->GradientsArrived(tiles); });
    from += batch.size().value;
  }
}

Status OffloadEngine::Synchronize() {
  executor_->EndStep();
  PENSTOCK_TRY(compute_->Synchronize());
  PENSTOCK_TRY(executor_->Synchronize());
  PENSTOCK_TRY(exchanges_.EndStep());
  return copy_out_->Synchronize();
}

Result<GradientNorm::Value> OffloadEngine::FinishGradients() {
  PENSTOCK_TRY(Synchronize());
  const GradientNorm::Blocks blocks = state_->WaitForBlocks();
  figures_ = state_->Figures();
  return exchanges_.Norm(blocks, figures_);
}

Status OffloadEngine::UpdateStep(double grad_scale) {
  if (!TakesTwoPasses(options_.config)) return state_->Update(grad_scale);
  PENSTOCK_ASSIGN(const std::span<const kernels::TrustSums> mine, state_->SumForTrust(grad_scale));
  PENSTOCK_ASSIGN(const std::vector<const kernels::TrustSums*> all, exchanges_.GatherTrust(mine));
  return state_->Update(grad_scale, state_->trust().ByTensor(all));
}

Status OffloadEngine::DropStep() {
  // A stream that has failed gives no gradients to wait for.
  PENSTOCK_TRY(Synchronize());
  return state_->DropStep();
}

Status OffloadEngine::Drain() {
  PENSTOCK_TRY(compute_->Synchronize());
  return state_->Drain();
}

EngineCounters OffloadEngine::counters() const {
  EngineCounters counters = state_->counters();
  counters.evictions += executor_->evictions();
  return counters;
}

}  // namespace penstock::zero
