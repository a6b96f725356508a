#include "zero/engine/exchanges.h"

#include <algorithm>

#include "zero/exchange/device_gradients.h"
#include "zero/exchange/gradient_exchange.h"
#include "zero/exchange/rounded_gradients.h"
#include "zero/states/trust_sums.h"

namespace penstock::zero {
namespace {

/// What ranks must plan alike, because it decides which operations they carry out, and whether a
/// commit of theirs is verified.
struct Common {
  uint64_t shared_slots;
  uint64_t gradient_buffers;
  double verification_cost;
};

/// Replaces slots and buffers by the least that a rank has, and the cost by the largest.
Status MakeCommon(RankLink& link, device::Device& device, Common* mine) {
  const uint32_t ranks = link.world().size;
  const Bytes part{sizeof(Common)};
  PENSTOCK_ASSIGN(const device::DeviceBuffer buffer, device.Allocate(part * ranks, "a plan"));
  PENSTOCK_ASSIGN(const device::HostBuffer host, device.AllocateHost(part * ranks));
  auto* const all = host.as<Common>();
  const Bytes begin = part * link.world().rank;
  all[link.world().rank] = *mine;
  device::Stream& stream = link.stream();
  stream.CopyToDevice(buffer.data() + begin.value, host.data() + begin.value, part);
  link.AllGather(buffer.data(), part, "plan of memory");
  stream.CopyToHost(host.data(), buffer.data(), part * ranks);
  PENSTOCK_TRY(stream.Synchronize());
  for (const Common& other : std::span(all, ranks)) {
    mine->shared_slots = std::min(mine->shared_slots, other.shared_slots);
    mine->gradient_buffers = std::min(mine->gradient_buffers, other.gradient_buffers);
    mine->verification_cost = std::max(mine->verification_cost, other.verification_cost);
  }
  return {};
}

Result<std::unique_ptr<GradientSums>> SumsOfOneRank(const EngineOptions& options,
                                                    const offload::ShardLayout& layout,
                                                    device::Device& device,
                                                    kernels::StateOperators& operators) {
  std::unique_ptr<GradientSums> sums;
  if (!RoundsMicroBatches(options.config)) {
    PENSTOCK_ASSIGN(sums, DeviceGradients::Create(options.model, layout, device, operators));
  } else {
    PENSTOCK_ASSIGN(
        sums, RoundedGradients::Create(options.model, layout, options.config.communication, device,
                                       operators));
  }
  return sums;
}

}  // namespace

Result<MemoryPlan> Exchanges::Plan(const EngineOptions& options, const offload::ShardLayout& layout,
                                   device::Device& device) {
  PENSTOCK_ASSIGN(
      MemoryPlan plan,
      PlanMemory(options.model, layout, options.config,
                 device.limit() - std::min(device.limit(), options.device_reserved),
                 options.host_memory - std::min(options.host_memory, options.host_reserved)));
  if (options.communicator == nullptr) return plan;
  link_ = std::make_unique<RankLink>(*options.communicator);
  Common common{.shared_slots = plan.shared_slots,
                .gradient_buffers = plan.gradient_buffers,
                .verification_cost = plan.verification.cost};
  PENSTOCK_TRY(MakeCommon(*link_, device, &common));
  plan.shared_slots = static_cast<uint32_t>(common.shared_slots);
  plan.gradient_buffers = static_cast<uint32_t>(common.gradient_buffers);
  DecideByCost(common.verification_cost, options.config, plan.verification);
  return plan;
}

Status Exchanges::Build(const EngineOptions& options, const offload::ShardLayout& layout,
                        const MemoryPlan& plan, device::Device& device,
                        kernels::StateOperators& operators) {
  if (options.model.gives_gradients) return {};
  PENSTOCK_ASSIGN(
      losses_, StepLosses::Create(options.config.gradient_accumulation_steps, device, link_.get()));
  PENSTOCK_ASSIGN(zeros_, ZeroCounter::Create(layout, options.config, device));
  if (link_ == nullptr) {
    PENSTOCK_ASSIGN(sums_, SumsOfOneRank(options, layout, device, operators));
    return {};
  }
  PENSTOCK_ASSIGN(
      sums_, GradientExchange::Create(options.model, layout,
                                      ExchangeOptions::Of(options.config, plan.gradient_buffers),
                                      device, operators, *link_));
  PENSTOCK_ASSIGN(norm_,
                  NormExchange::Create(layout, TakesTwoPasses(options.config), device, *link_));
  gather_.emplace(layout, *link_);
  return {};
}

Result<FinishedSums> Exchanges::Finish(ModuleId module, device::Stream& compute) {
  PENSTOCK_ASSIGN(const FinishedSums finished, sums_->Finish(module, compute));
  zeros_->Count(module, finished);
  return finished;
}

void Exchanges::BeginStep() {
  if (zeros_) zeros_->BeginStep();
  if (link_ != nullptr) link_->BeginStep();
}

Status Exchanges::EndStep() {
  if (sums_ != nullptr) sums_->EndStep();
  if (losses_ != nullptr) losses_->EndStep();
  return link_ == nullptr ? Status() : link_->stream().Synchronize();
}

Result<GradientNorm::Value> Exchanges::Norm(const GradientNorm::Blocks& mine,
                                            StepFigures& figures) {
  if (zeros_) {
    PENSTOCK_ASSIGN(figures.zeros, zeros_->Take());
  }
  return norm_ ? norm_->Combine(mine, figures) : GradientNorm::NormOf(mine);
}

Result<std::vector<const kernels::TrustSums*>> Exchanges::GatherTrust(
    std::span<const kernels::TrustSums> mine) {
  if (norm_) return norm_->Gather(mine);
  return std::vector<const kernels::TrustSums*>{mine.data()};
}

}  // namespace penstock::zero
