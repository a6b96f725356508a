// Memory: what a training needs at least, what it may have, and a refusal that says what would
// work.
//
// Decided before anything is created. What is above the minimum goes to the engine. Threads: any.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "device/device.h"
#include "kernels/model/model_operators.h"
#include "train/gpt2.h"
#include "train/model_config.h"
#include "zero/config.h"
#include "zero/model.h"

namespace penstock::train {

/// The least a training can work with, and the sums it comes from, for messages.
struct MemoryNeeds {
  Bytes device_minimum;   ///< engine, activations and operator scratch
  Bytes device_reserved;  ///< of these: activations and operator scratch
  Bytes host_minimum;
  Bytes host_reserved;  ///< of this: activation checkpoints, tokens and what the model keeps
  std::string device_sum;
  std::string host_sum;
};

/// The limits that hold for a training.
struct MemoryBudget {
  Bytes device;  ///< a multiple of device::kDeviceAlignment
  Bytes host;
};

/// The memory there is for this process, of which the limits that nobody named are taken.
struct MachineMemory {
  Bytes total;
  Bytes available;
  std::optional<Bytes> gpu = std::nullopt;  ///< free on the GPU, where that is the device
};
/// Linux' /proc/meminfo, less where a control group (the process's own or one above it) has a lower
/// limit: then both are what is left of that. `root` is where /proc and /sys are. Errors: kIo.
Result<MachineMemory> ReadMachineMemory(const std::string& root = "/");

/// What the operators of a training are made for. `config` has its thread counts.
kernels::OperatorOptions OperatorsFor(const Gpt2Config& model, const Gpt2Shape& shape,
                                      const zero::Config& config);

/// What is trained, as far as memory is concerned. Borrows what it names.
struct PlannedTraining {
  const zero::ModelSpec& spec;
  const Gpt2Config& model;
  const Gpt2Shape& shape;
  const zero::Config& config;  ///< has its thread counts
  device::Kind kind;
};

/// Sums what engine, model and operators plan to take. What is beyond all memory of `machine` and
/// beyond the limits that are named, or does not fit 64 bits, is refused before operators are made
/// to ask for their scratch. Errors: kBudget, with the sum; those of the operators.
Result<MemoryNeeds> PlanMemory(const PlannedTraining& training,
                               const std::function<Result<MachineMemory>()>& machine);

/// Limits from the config (the command line is in it by then); by default half of the machine's
/// memory for the CPU device, all but a reserve of what is free on a GPU, and three quarters of
/// what is available for the host. Asks for `machine` only where a limit is not named. Errors:
/// kBudget with the sum by class, the limit and the smallest one that works, in bytes; those of
/// `machine`.
Result<MemoryBudget> DecideBudget(const MemoryNeeds& needs, const zero::Config& config,
                                  const std::function<Result<MachineMemory>()>& machine);

}  // namespace penstock::train
