// States at home in host memory or on the drive, for a model that a caller computes: the host half
// of the engine (zero::StateEngine), with the tasks of an executor for our own models. It brings
// units' weights to the caller's memory, and keeps the clock by which states are read ahead.
//
// The time of a use is that of the planned use, or of the next planned one.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "front/plan.h"
#include "front/unit_memory.h"
#include "offload/layout.h"
#include "zero/engine/forwarding_states.h"
#include "zero/engine/memory_plan.h"
#include "zero/engine/state_engine.h"
#include "zero/engine/state_port.h"

namespace penstock::front {

class HostHome final : public zero::ForwardingStates<zero::StatePort> {
 public:
  /// Takes the memory of `memory`, and makes the files or opens those of Plan::engine. The plan
  /// outlives it. Errors: those of zero::StateEngine.
  static Result<std::unique_ptr<HostHome>> Create(const Plan& plan, const zero::MemoryPlan& memory);

  zero::StateEngine& engine() const { return *engine_; }

  // A step; see zero/engine/state_port.h.
  Status BeginStep(double lr, uint64_t t) override;
  Status UpdateStep(double grad_scale) override { return EndUses(engine_->UpdateStep(grad_scale)); }
  Status SkipStep() override { return EndUses(engine_->SkipStep()); }
  Status DropStep() override { return EndUses(engine_->DropStep()); }
  void SetOrder(const zero::StepOrder& order) override;
  /// Says that a unit is used. `brings`: the use needs the engine's weights.
  void Use(offload::ModuleId unit, bool brings);
  /// Copies a unit's weights to memory of the host, with up to `threads` threads. Errors: of reads
  /// and updates.
  Status CopyWeights(offload::ModuleId unit, const UnitMemory& to, int threads);
  /// Waits for the unit's last update, which reads its last gradient: once a step. Errors: as
  /// above.
  Status Settle(offload::ModuleId unit);
  /// Says that the unit was waited for.
  void Settled(offload::ModuleId unit) { settled_[offload::Index(unit)] = true; }

 private:
  /// Weights of several tiles are copied together, up to this size.
  static constexpr Bytes kMaxCopied = 16_MiB;

  explicit HostHome(const Plan& plan)
      : plan_(plan), settled_(plan.layout.model.modules.size(), false) {}
  zero::StatePort& states() const override { return *engine_; }
  void SetTime(uint64_t step_start);
  Status EndUses(Status ended);

  const Plan& plan_;
  uint64_t step_start_ = 0;    ///< in the time of the schedule
  uint64_t next_use_ = 0;      ///< next use of the plan
  std::vector<bool> settled_;  ///< units whose last update was waited for in this step
  std::unique_ptr<zero::StateEngine> engine_;
};

}  // namespace penstock::front
