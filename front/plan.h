// What a training with a caller of its own is made of: the texts, read; the budget, spent.
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

/// What states at home on the device take of it.
struct DeviceHomeBytes {
  Bytes parameters;
  Bytes gradients;
  Bytes states;
  Bytes sums;  ///< of gradients, in fp32

  Bytes total() const { return parameters + gradients + states + sums; }
  /// "parameters 6.00 MiB + gradients …", for messages.
  std::string Sum() const;
};

/// What a training is made of, and what it will take.
struct Plan {
  zero::EngineOptions engine;  ///< `model` has an order
  offload::ShardLayout layout;
  uint32_t slots = 0;  ///< of repeated units, on the caller's side
  Bytes sums;          ///< of gradients, beside the engine's
  Bytes reading;       ///< a tile, for whoever reads states
  bool cuda = false;   ///< the caller's memory is a CUDA device's
  zero::LossReports losses = zero::LossReports::kAsFirstStep;
  bool scales_loss = false;  ///< by the engine's loss scale
  Bytes arriving;            ///< gradients on their way from there
  Bytes arriving_minimum;
  bool on_device = false;  ///< states are at home there, too
  DeviceHomeBytes device;  ///< what they take then
  /// fp32 sums of micro-batches that the caller keeps on the GPU; it gives each gradient once a
  /// step. None if the engine adds up, and if there is nothing to add up.
  Bytes device_sums;

  /// How many gradients of a tensor a step has at most.
  uint64_t gradients_a_step() const {
    return device_sums.value > 0 ? 1 : engine.config.gradient_accumulation_steps;
  }
  std::vector<std::string> continue_from;
  std::optional<uint64_t> continue_step;  ///< of the one commit that may be continued
  bool in_new_files = false;              ///< continues in none of the files that it reads
  /// Is asked about the commit that is continued, before anything is written. May be empty.
  std::function<Status(const zero::CommittedState& commit)> check_commit;
  /// Is told before files of a new state are made, and chooses folders and UUID. May be empty.
  std::function<Status(zero::EngineOptions& engine)> place_new_files;
  std::vector<std::string> notices;
  std::vector<std::string> warnings;  ///< notices of a loss, as of a commit that was left
};

/// Reads the three texts. Errors: kInvalidArgument; kIo if the machine's memory is unknown.
Result<Plan> MakePlan(const std::string& config, const std::string& model,
                      const std::string& options);
/// The store's part of the budget. Errors: kBudget.
Result<zero::MemoryPlan> PlanStore(const Plan& plan);

}  // namespace penstock::front
