#include "train/plan/budget.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "train/models/checked_operators.h"
#include "zero/engine/engine.h"
#include "zero/plan/partitioner.h"

namespace penstock::train {
namespace {

/// What ParseBytes reads at most.
constexpr Bytes kMaxLimit{uint64_t{INT64_MAX}};

/// A sum that did not fit is as large as a size can be.
std::string SumText(Bytes sum) {
  if (sum > kMaxLimit) return "more than 2^63 bytes";
  return fmt::format("{} bytes", sum.value);
}

/// What is too small, and the option with which it works.
struct TooSmall {
  std::string what;
  std::string option;
};

TooSmall Missing(const char* memory, const char* option, Bytes limit, Bytes minimum,
                 const std::string& sum) {
  return {fmt::format("{} memory of {} bytes is too small: {} = {} bytes", memory, limit.value, sum,
                      minimum.value),
          fmt::format("--{} {}", option, minimum.value)};
}

/// Names all that is missing at once.
Error Refuse(const std::vector<TooSmall>& missing) {
  std::vector<std::string> what;
  std::vector<std::string> options;
  for (const TooSmall& one : missing) {
    what.push_back(one.what);
    options.push_back(one.option);
  }
  return MakeError(ErrorCode::kBudget,
                   "{}; the smallest that works is {}; penstock plan says what else would fit",
                   fmt::join(what, "; "), fmt::join(options, " "));
}

/// Of a GPU's memory, for code that CUDA and its libraries load when it is first used.
constexpr Bytes kGpuReserve = 1_GiB;

/// What Gloo holds for each other rank (docs/ranks.md).
constexpr Bytes kGlooConnection = 6_KiB;

/// Of host memory, for what moves bytes between the ranks. NCCL's is the device's, and is known
/// only when it has run (ArenaBeside).
Bytes Connections(const PlannedTraining& training) {
  if (training.kind != device::Kind::kCpu) return 0_B;
  return kGlooConnection * (training.world.size - 1);
}

/// Of host memory, for the tokens of a step: inputs and targets; a row of them and one token more
/// as they are read.
Bytes TokenBytes(const BatchShape& shape) {
  const Bytes row = Bytes{sizeof(int32_t)} * (shape.sequence + 1);
  return Bytes{sizeof(int32_t)} * 2 * shape.sequence * shape.micro_batch * shape.micro_batches +
         row;
}

Bytes DefaultDeviceMemory(const OfferedMemory& memory) {
  if (!memory.gpu.has_value()) return Bytes{memory.machine.total.value / 2};
  return *memory.gpu - std::min(kGpuReserve, Bytes{memory.gpu->value / 2});
}

Bytes RoundDown(Bytes size, Bytes alignment) {
  return Bytes{size.value / alignment.value * alignment.value};
}

}  // namespace

Result<OfferedMemory> ReadOfferedMemory(std::optional<Bytes> gpu, uint32_t local_ranks,
                                        const std::string& root) {
  Result<MachineMemory> machine = ReadMachineMemory(root);
  if (!machine.ok()) {
    return MakeError(machine.error().code, "{}; name it with --device-memory and --host-memory",
                     machine.error().message);
  }
  machine->total = Bytes{machine->total.value / local_ranks};
  machine->available = Bytes{machine->available.value / local_ranks};
  return OfferedMemory{.machine = *machine, .gpu = gpu};
}

kernels::OperatorOptions OperatorsFor(const ModelDescription& model, const BatchShape& shape,
                                      const config::Config& config) {
  kernels::OperatorOptions options = model.Operators(shape, config.dtype, config.compute_threads);
  if (config.attention == config::AttentionChoice::kCudnn) {
    options.attention = kernels::AttentionKernel::kCudnn;
  }
  return options;
}

namespace {

/// All but the operators' scratch, which only they know.
MemoryNeeds NeedsBesideScratch(const PlannedTraining& training, const zero::MemoryMinimum& engine) {
  const BatchShape& shape = training.shape;
  const ActivationBytes taken = training.model.Activations(shape, training.config.dtype);
  const Bytes activations = AlignUp(taken.device, device::kDeviceAlignment);
  const Bytes tokens =
      taken.bookkeeping + TokenBytes(shape) +
      kernels::OperatorHeap(training.kind, OperatorsFor(training.model, shape, training.config));
  const Bytes connections = Connections(training);
  MemoryNeeds needs;
  needs.reserved = {.activations = activations,
                    .scratch = {},
                    .checkpoints = taken.host,
                    .tokens = tokens,
                    .connections = connections};
  needs.device_minimum = AlignUp(engine.device_minimum, device::kDeviceAlignment) + activations;
  needs.host_minimum = engine.host_minimum + needs.reserved.host();
  needs.device_sum = fmt::format("{} + activations {}", engine.device_sum, ToString(activations));
  needs.host_sum = engine.host_sum;
  if (taken.host.value > 0) {
    needs.host_sum += fmt::format(" + activation checkpoints {}", ToString(taken.host));
  }
  needs.host_sum += fmt::format(" + tokens and what is known of the batch {}", ToString(tokens));
  if (connections.value > 0) {
    needs.host_sum += fmt::format(" + connections to the other ranks {}", ToString(connections));
  }
  return needs;
}

/// The most that there can be: what the machine has, or a named limit above that. A machine that
/// cannot be looked at decides nothing here.
MemoryBudget MostMemory(const config::Config& config,
                        const std::function<Result<OfferedMemory>()>& machine) {
  const Result<OfferedMemory> found = machine();
  if (!found.ok()) {
    return {.device = config.device_memory.value_or(kMaxLimit),
            .host = config.host_memory.value_or(kMaxLimit)};
  }
  return {.device = std::max(config.device_memory.value_or(Bytes{}),
                             found->gpu.value_or(found->machine.total)),
          .host = std::max(config.host_memory.value_or(Bytes{}), found->machine.total)};
}

bool Fits(const MemoryNeeds& needs, const MemoryBudget& memory) {
  return needs.device_minimum <= memory.device && needs.host_minimum <= memory.host;
}

/// What to change where not even the whole machine holds a training: the number of micro-batches
/// that it holds, if fewer help.
std::string WhatFits(const PlannedTraining& training, const MemoryBudget& most) {
  const auto fits = [&](uint64_t micro_batches) {
    BatchShape shape = training.shape;
    shape.micro_batches = micro_batches;
    config::Config config = training.config;
    config.gradient_accumulation_steps = micro_batches;
    const PlannedTraining smaller{.spec = training.spec,
                                  .model = training.model,
                                  .shape = shape,
                                  .config = config,
                                  .kind = training.kind,
                                  .world = training.world};
    return Fits(NeedsBesideScratch(
                    smaller, zero::Engine::MinimumMemory(smaller.spec, config, smaller.world)),
                most);
  };
  uint64_t few = 0;
  uint64_t many = training.shape.micro_batches;
  while (many - few > 1) {
    const uint64_t middle = few + (many - few) / 2;
    (fits(middle) ? few : many) = middle;
  }
  if (few > 0) {
    return fmt::format("gradient_accumulation_steps of {} and less fit, {} does not", few,
                       training.shape.micro_batches);
  }
  return "make the micro-batch, the sequence or the model smaller";
}

/// All but the operators' scratch.
Result<MemoryNeeds> NeedsOf(const PlannedTraining& training) {
  PENSTOCK_TRY(zero::CheckTileCount(training.spec, training.config));
  return NeedsBesideScratch(
      training, zero::Engine::MinimumMemory(training.spec, training.config, training.world));
}

Result<MemoryNeeds> AddScratch(const PlannedTraining& training, MemoryNeeds needs) {
  PENSTOCK_ASSIGN(Bytes scratch, kernels::OperatorScratch(
                                     training.kind, OperatorsFor(training.model, training.shape,
                                                                 training.config)));
  scratch = AlignUp(scratch, device::kDeviceAlignment) + CheckedOperators::Need();
  needs.reserved.scratch = scratch;
  needs.device_minimum += scratch;
  needs.device_sum += fmt::format(" + operator scratch {}", ToString(scratch));
  return needs;
}

}  // namespace

Result<MemoryNeeds> SumMemoryNeeds(const PlannedTraining& training) {
  PENSTOCK_ASSIGN(MemoryNeeds needs, NeedsOf(training));
  if (needs.reserved.activations <= kMaxLimit) {
    Result<MemoryNeeds> all = AddScratch(training, needs);
    if (all.ok() || all.error().code != ErrorCode::kUnavailable) return all;
  }
  needs.reserved.scratch_is_known = false;
  return needs;
}

Result<MemoryNeeds> SumMemoryNeeds(const PlannedTraining& training,
                                   const std::function<Result<OfferedMemory>()>& machine) {
  const config::Config& config = training.config;
  PENSTOCK_ASSIGN(MemoryNeeds needs, NeedsOf(training));
  const MemoryBudget most = MostMemory(config, machine);
  if (!Fits(needs, most)) {
    const bool device = needs.device_minimum > most.device;
    return MakeError(ErrorCode::kBudget, "{} memory: {} = {}, and there are {} bytes in all; {}",
                     device ? "device" : "host", device ? needs.device_sum : needs.host_sum,
                     SumText(device ? needs.device_minimum : needs.host_minimum),
                     (device ? most.device : most.host).value, WhatFits(training, most));
  }
  return AddScratch(training, std::move(needs));
}

Result<MemoryBudget> TakeLimits(const config::Config& config,
                                const std::function<Result<OfferedMemory>()>& machine) {
  Bytes device = config.device_memory.value_or(Bytes{});
  Bytes host = config.host_memory.value_or(Bytes{});
  if (!config.device_memory.has_value() || !config.host_memory.has_value()) {
    PENSTOCK_ASSIGN(const OfferedMemory memory, machine());
    device = config.device_memory.value_or(DefaultDeviceMemory(memory));
    host = config.host_memory.value_or(DefaultHostMemory(memory.machine));
  }
  return MemoryBudget{.device = device, .host = host};
}

Result<MemoryBudget> DecideBudget(const MemoryNeeds& needs, const config::Config& config,
                                  const std::function<Result<OfferedMemory>()>& machine) {
  PENSTOCK_ASSIGN(const MemoryBudget limits, TakeLimits(config, machine));
  const MemoryBudget budget = {.device = RoundDown(limits.device, device::kDeviceAlignment),
                               .host = limits.host};
  std::vector<TooSmall> missing;
  if (budget.device < needs.device_minimum) {
    missing.push_back(
        Missing("device", "device-memory", limits.device, needs.device_minimum, needs.device_sum));
  }
  if (budget.host < needs.host_minimum) {
    missing.push_back(
        Missing("host", "host-memory", budget.host, needs.host_minimum, needs.host_sum));
  }
  if (!missing.empty()) return Refuse(missing);
  return budget;
}

Result<Bytes> ArenaBeside(Bytes library, const MemoryNeeds& needs, const MemoryBudget& budget) {
  const Bytes taken = AlignUp(library, device::kDeviceAlignment);
  const Bytes minimum = needs.device_minimum + taken;
  if (budget.device >= minimum) return budget.device - taken;
  return Refuse({Missing("device", "device-memory", budget.device, minimum,
                         fmt::format("{} + NCCL {}", needs.device_sum, ToString(taken)))});
}

}  // namespace penstock::train
