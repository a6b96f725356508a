// The plan of a training for the C interface: the parsed texts and the memory budget.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "offload/layout.h"
#include "zero/engine/engine_options.h"
#include "zero/engine/memory_plan.h"
#include "zero/session/step_life.h"
#include "zero/states/committed_state.h"

namespace penstock::front {

/// Device bytes of states at home there.
struct DeviceHomeBytes {
  Bytes parameters;
  Bytes gradients;
  Bytes states;
  Bytes sums;  ///< sums of gradients, in fp32

  Bytes total() const { return parameters + gradients + states + sums; }
  /// "parameters 6.00 MiB + gradients …", for messages.
  std::string Sum() const;
};

/// The parts of a training and the memory it takes.
struct Plan {
  zero::EngineOptions engine;  ///< `model` has an order
  offload::ShardLayout layout;
  uint32_t slots = 0;  ///< the caller's buffers for repeated units
  Bytes sums;          ///< sums of gradients, besides the engine's gradients
  Bytes reading;       ///< a tile, for reads of states
  bool cuda = false;   ///< the caller's memory is a CUDA device's
  zero::LossReports losses = zero::LossReports::kAsFirstStep;
  bool scales_loss = false;  ///< the loss is scaled by the engine's loss scale
  Bytes arriving;            ///< gradients arriving from the device
  Bytes arriving_minimum;
  bool on_device = false;  ///< states are at home on the device, too
  DeviceHomeBytes device;  ///< device bytes in that case
  /// fp32 sums of micro-batches that the caller keeps on the GPU; it gives each gradient once a
  /// step. None if the engine adds up, or with one micro-batch.
  Bytes device_sums;
  bool holds_gradients = false;  ///< they can be replaced until the norm is taken

  /// Returns the max number of gradients of a tensor in a step.
  uint64_t gradients_a_step() const {
    return device_sums.value > 0 ? 1 : engine.config.gradient_accumulation_steps;
  }
  std::vector<std::string> continue_from;
  std::optional<uint64_t> continue_step;  ///< the only commit that may be resumed
  std::optional<uint64_t> doubted_step;   ///< of a commit that is resumed only if no other can be
  bool in_new_files = false;              ///< resumes in new files, not in those that it reads
  /// Called with the commit to resume, before anything is written. May be empty.
  std::function<Status(const zero::CommittedState& commit)> check_commit;
  /// Called before files of a new state are made; sets folders and UUID. May be empty.
  std::function<Status(zero::EngineOptions& engine)> place_new_files;
  std::vector<std::string> notices;
  std::vector<std::string> warnings;  ///< notices of lost work, such as an unused damaged commit
};

/// Parses the three texts. Errors: kInvalidArgument; kIo if the machine's memory is unknown.
Result<Plan> MakePlan(const std::string& config, const std::string& model,
                      const std::string& options);
/// The store's part of the budget. Errors: kBudget.
Result<zero::MemoryPlan> PlanStore(const Plan& plan);

}  // namespace penstock::front
