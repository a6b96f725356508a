// Decides on memory: what a training needs at least and what it may have. A refusal says what would
// work.
//
// This is decided before anything is created. Memory above the minimum goes to the engine. Threads:
// any.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/machine_memory.h"
#include "base/result.h"
#include "base/units.h"
#include "comm/world.h"
#include "config/config.h"
#include "device/device.h"
#include "kernels/model/model_operators.h"
#include "train/models/model.h"
#include "zero/model.h"

namespace penstock::train {

/// What a training takes beside the engine, by class. On the device:
struct ReservedBytes {
  Bytes activations;
  Bytes scratch;  ///< of operators; not in the sum if it is not known
  bool scratch_is_known = true;
  // On the host:
  Bytes checkpoints;  ///< activation checkpoints
  Bytes tokens;       ///< with what is known of the batch
  Bytes connections;  ///< to other ranks

  Bytes device() const { return activations + scratch; }
  Bytes host() const { return checkpoints + tokens + connections; }
};

/// The least that a training can work with, and the sums that it comes from, for messages.
struct MemoryNeeds {
  Bytes device_minimum;  ///< engine, activations and operator scratch
  Bytes host_minimum;
  ReservedBytes reserved;  ///< of these
  std::string device_sum;
  std::string host_sum;
};

/// The memory available to this process, from which default limits are taken.
struct OfferedMemory {
  MachineMemory machine;                    ///< divided among the ranks of the node
  std::optional<Bytes> gpu = std::nullopt;  ///< free on the GPU, if that is the device
};
/// Reads the machine's memory; `root` is the folder of /proc and /sys. An error says with which
/// options it is not needed. Errors: those of ReadMachineMemory.
Result<OfferedMemory> ReadOfferedMemory(std::optional<Bytes> gpu, uint32_t local_ranks = 1,
                                        const std::string& root = "/");

/// The limits of a training.
struct MemoryBudget {
  Bytes device;  ///< a multiple of device::kDeviceAlignment
  Bytes host;
};

/// Returns the options of a training's operators. `config` has its thread counts.
kernels::OperatorOptions OperatorsFor(const ModelDescription& model, const BatchShape& shape,
                                      const config::Config& config);

/// The training as far as memory is concerned. Borrows what it names.
struct PlannedTraining {
  const zero::ModelSpec& spec;
  const ModelDescription& model;
  BatchShape shape;
  const config::Config& config;  ///< has its thread counts
  device::Kind kind;
  comm::World world = {};
};

/// Sums what engine, model and operators plan to take. A sum that exceeds all memory of `machine`
/// and the given limits, or does not fit 64 bits, is refused before operators are made to ask for
/// their scratch. Errors: kBudget, with the sum; those of the operators.
Result<MemoryNeeds> SumMemoryNeeds(const PlannedTraining& training,
                                   const std::function<Result<OfferedMemory>()>& machine);

/// The same independent of a machine's memory. The scratch of operators that this build does not
/// have, or of sizes that no machine has, is not known. Errors: kBudget for more tiles than there
/// may be; those of the operators.
Result<MemoryNeeds> SumMemoryNeeds(const PlannedTraining& training);

/// Returns the limits that a training of this config has. By default the CPU device gets half of
/// the machine's memory, a GPU all free memory but a reserve, and the host three quarters of what
/// is available. Asks for `machine` only if a limit is not given. Errors: those of `machine`.
Result<MemoryBudget> TakeLimits(const config::Config& config,
                                const std::function<Result<OfferedMemory>()>& machine);

/// The same, if the training fits them. Errors: kBudget with the sum by class, the limit and the
/// smallest one that works, in bytes; those of TakeLimits.
Result<MemoryBudget> DecideBudget(const MemoryNeeds& needs, const config::Config& config,
                                  const std::function<Result<OfferedMemory>()>& machine);

/// Returns what is left of the device's budget for its arena beside `library`, which the library
/// between the ranks holds outside of it. Errors: kBudget, with the sum and the smallest limit that
/// works.
Result<Bytes> ArenaBeside(Bytes library, const MemoryNeeds& needs, const MemoryBudget& budget);

}  // namespace penstock::train
