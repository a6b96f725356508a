#include "front/plan.h"

#include <algorithm>
#include <utility>

#include "base/machine_memory.h"
#include "base/topology.h"
#include "front/arrival_room.h"
#include "front/gradient_inbox.h"
#include "front/model_text.h"
#include "front/parallel_copy.h"
#include "zero/plan/partitioner.h"
#include "zero/plan/schedule_builder.h"
#include "zero/plan/thread_plan.h"

namespace penstock::front {
namespace {

Result<Bytes> HostLimit(const Options& options, const config::Config& config) {
  if (options.host_memory) return *options.host_memory;
  if (config.host_memory) return *config.host_memory;
  PENSTOCK_ASSIGN(const MachineMemory memory, ReadMachineMemory());
  return DefaultHostMemory(memory);
}

/// Where updates share cores with threads that compute, these wait for the one that is slowed most.
/// Updates on all cores slow all of them alike, as far as the bandwidth of memory goes. A number in
/// the configuration is kept, and with a quota no thread has a core all the time.
void UpdateOnSharedCores(config::Config& config) {
  const Result<Topology> topology = ReadTopology();
  if (!topology.ok() || topology->cpu_quota || config.optimizer_threads != 0) return;
  const zero::ThreadPlan plan =
      zero::PlanThreads(*topology, device::Kind::kCpu, {.compute = config.compute_threads}, {});
  if (!plan.optimizer.empty()) return;
  config.optimizer_threads =
      std::max(plan.counts.optimizer, std::min(plan.counts.compute, kMaxMemoryThreads));
}

/// Sets options that the caller cannot choose.
void Adapt(config::Config& config, bool cuda, std::vector<std::string>* notices) {
  config.check_grad_overflow = true;
  if (config.scheduler.type != config::SchedulerType::kNone) {
    config.scheduler = {};
    notices->emplace_back(
        "the scheduler of the configuration is not used: learning rates and betas are those that "
        "each step is given");
  }
  if (cuda || config.optimizer_home != Tier::kDevice) return;
  config.optimizer_home = Tier::kHost;
  notices->push_back(
      "optimizer states are at home in host memory: the configuration offloads none, and the "
      "parameters are there as well");
}

Status CheckLossScale(const Options& options, const config::Config& config) {
  if (!options.scales_loss || config.loss_scaling) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "options: scales_loss is true, and the configuration does not say how; enable "
                   "fp16 in it, or leave scales_loss out");
}

/// Device bytes of states at home there.
DeviceHomeBytes OnDevice(const Plan& plan) {
  const config::Config& config = plan.engine.config;
  const zero::DeviceBytes need = zero::DeviceNeed(plan.engine.model, plan.layout, config, {});
  return {.parameters = need.parameters,
          .gradients = need.gradients,
          .states = need.states,
          .sums = GradientInbox::Need(plan.layout, config.gradient_accumulation_steps)};
}

Status CheckDeviceLimit(const Plan& plan) {
  const std::optional<Bytes> limit = plan.engine.config.device_memory;
  const Bytes need = plan.device.total();
  if (!plan.on_device || !limit || need <= *limit) return {};
  return MakeError(
      ErrorCode::kBudget,
      "device memory: optimizer states at home there need {} bytes ({}), and the limit "
      "is {}; raise penstock.device_memory to {} bytes, or have them in host memory or "
      "on nvme (offload_optimizer)",
      need.value, plan.device.Sum(), limit->value, need.value);
}

/// Decides where micro-batches are added up, if there are several and the caller is on a GPU.
void PlanSums(const Options& options, Plan& plan) {
  const uint64_t micro_batches = plan.engine.config.gradient_accumulation_steps;
  if (!options.cuda || micro_batches == 1 || !options.device_sums) return;
  const Bytes need = GradientInbox::DeviceNeed(plan.layout);
  const Bytes spared = *options.device_sums;
  const bool fit = need.value > 0 && need <= spared;
  if (fit) plan.device_sums = need;
  plan.notices.push_back(
      fmt::format("gradients of {} micro-batches are added up in {} memory: in fp32 on the device "
                  "they take {}, and {} of it can be spared",
                  micro_batches, fit ? "device" : "host", ToString(need), ToString(spared)));
}

/// The room in which gradients arrive: more than the minimum if memory is left, as the caller then
/// waits less; but only a small part, because tiles and reading ahead need memory as well.
void PlanRoom(Plan& plan) {
  constexpr uint64_t kShare = 16;
  const uint64_t gradients = plan.gradients_a_step();
  plan.arriving_minimum = ArrivalRoom::Minimum(plan.layout);
  const Bytes needed =
      zero::MinimumMemory(plan.engine.model, plan.layout, plan.engine.config).host_minimum +
      plan.sums + plan.reading;
  const Bytes limit = plan.engine.host_memory;
  const Bytes left = limit > needed ? limit - needed : 0_B;
  constexpr Bytes kPage = 4_KiB;
  const Bytes share = kPage * (left / (kPage * kShare));
  plan.arriving =
      std::clamp(share, plan.arriving_minimum, ArrivalRoom::Maximum(plan.layout, gradients));
}

Status CheckFolders(const Options& options, const config::Config& config) {
  const size_t paths = std::max<size_t>(config.nvme_paths.size(), 1);
  if (options.folders.size() == paths) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "options: folders has {} entries, and the configuration has {} nvme paths; "
                   "name a folder for each path, and one if there is none",
                   options.folders.size(), config.nvme_paths.size());
}

}  // namespace

std::string DeviceHomeBytes::Sum() const {
  return fmt::format("parameters {} + gradients {} + optimizer states {} + sums of gradients {}",
                     ToString(parameters), ToString(gradients), ToString(states), ToString(sums));
}

Result<Plan> MakePlan(const std::string& config_text, const std::string& model,
                      const std::string& options_text) {
  Plan plan;
  PENSTOCK_ASSIGN(const Options options, ParseOptions(options_text));
  PENSTOCK_ASSIGN(plan.engine.config, config::ParseConfig({{"config", config_text}}, 1));
  config::Config& config = plan.engine.config;
  PENSTOCK_ASSIGN(plan.engine.model, ParseModel(model));
  plan.notices = config::NoticesOf(config);
  PENSTOCK_TRY(CheckFolders(options, config));
  PENSTOCK_TRY(CheckLossScale(options, config));
  Adapt(config, options.cuda, &plan.notices);
  plan.on_device = config.optimizer_home == Tier::kDevice;
  plan.engine.model.gives_gradients = plan.on_device;
  if (!options.cuda) UpdateOnSharedCores(config);
  PENSTOCK_TRY(zero::CheckTileCount(plan.engine.model, config));
  plan.layout = zero::MakeLayout(plan.engine.model, config);
  const uint32_t repeated = zero::CountRepeated(plan.engine.model, plan.layout).count;
  plan.slots =
      config.parameter_home == Tier::kDevice ? repeated : std::min(repeated, options.slots);
  if (plan.on_device) {
    plan.device = OnDevice(plan);
  } else {
    PlanSums(options, plan);
    plan.sums = GradientInbox::Need(plan.layout, plan.gradients_a_step());
  }
  plan.engine.state_folders = options.folders;
  plan.engine.seed = options.seed;
  plan.reading = (plan.layout.largest_weight() + plan.layout.largest_record()) * 2;
  plan.cuda = options.cuda;
  plan.losses = options.losses;
  plan.scales_loss = options.scales_loss;
  plan.holds_gradients = options.holds_gradients;
  PENSTOCK_ASSIGN(plan.engine.host_memory, HostLimit(options, config));
  if (plan.cuda && !plan.on_device) PlanRoom(plan);
  plan.engine.host_reserved = plan.sums + plan.reading + plan.arriving;
  plan.continue_from = options.continue_from;
  plan.continue_step = options.step;
  return plan;
}

Result<zero::MemoryPlan> PlanStore(const Plan& plan) {
  const Bytes limit = plan.engine.host_memory;
  const Bytes own = plan.engine.host_reserved;
  if (limit < own) {
    const Bytes least =
        zero::MinimumMemory(plan.engine.model, plan.layout, plan.engine.config).host_minimum + own;
    return MakeError(ErrorCode::kBudget,
                     "host memory: the training needs {} bytes, of which sums of gradients, tiles "
                     "that are read and arriving gradients take {}, and the limit is {}; raise the "
                     "host memory to {} bytes",
                     least.value, own.value, limit.value, least.value);
  }
  PENSTOCK_TRY(CheckDeviceLimit(plan));
  const Bytes available = limit - own;
  // The caller owns the device: its buffers are in none of our budgets.
  PENSTOCK_ASSIGN(zero::MemoryPlan memory,
                  zero::PlanMemory(plan.engine.model, plan.layout, plan.engine.config,
                                   Bytes{kMaxCount}, available));
  memory.shared_slots = plan.slots;
  return memory;
}

}  // namespace penstock::front
