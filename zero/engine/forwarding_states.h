// States that hand every call to others, for those that change a few: an engine whose states are in
// host memory (zero/engine/offload_engine.h), what a caller trains with, and tests.
//
// Threads: as zero/engine/state_port.h.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "zero/engine/state_port.h"

namespace penstock::zero {

/// `Port`: StatePort, or what derives from it.
template <typename Port>
class ForwardingStates : public Port {
 public:
  Status FillTiles(const TileFill& fill) override { return states().FillTiles(fill); }
  Status FillTile(offload::TileId tile, const TileFill& fill) override {
    return states().FillTile(tile, fill);
  }
  Status EndFill() override { return states().EndFill(); }
  Result<TrainState> Adopt() override { return states().Adopt(); }
  const EngineOptions& options() const override { return states().options(); }
  const offload::ShardLayout& layout() const override { return states().layout(); }
  void SetOrder(const StepOrder& order) override { states().SetOrder(order); }
  void ExpectLastStep() override { states().ExpectLastStep(); }
  void NumberStep(uint64_t step) override { states().NumberStep(step); }
  Status BeginStep(double lr, uint64_t t) override { return states().BeginStep(lr, t); }
  void SetGroups(std::vector<GroupSpec> groups, double lr) override {
    states().SetGroups(std::move(groups), lr);
  }
  Result<std::vector<HostGradient>> BeginHostGradients(ModuleId module) override {
    return states().BeginHostGradients(module);
  }
  Status EndHostGradients(ModuleId module) override { return states().EndHostGradients(module); }
  void AllowUpdates() override { states().AllowUpdates(); }
  void SetNote(const StepNote& note) override { states().SetNote(note); }
  Result<GradientNorm::Value> FinishGradients() override { return states().FinishGradients(); }
  const StepFigures& figures() const override { return states().figures(); }
  std::span<const StepNote> notes() const override { return states().notes(); }
  Status UpdateStep(double grad_scale) override { return states().UpdateStep(grad_scale); }
  Status SkipStep() override { return states().SkipStep(); }
  Status DropStep() override { return states().DropStep(); }
  Status Drain() override { return states().Drain(); }
  void BeginCommit(const TrainState& state, std::function<Status()> first) override {
    states().BeginCommit(state, std::move(first));
  }
  Status WriteCallerFile(std::string_view content) override {
    return states().WriteCallerFile(content);
  }
  Status FinishCommit() override { return states().FinishCommit(); }
  Status TakeBackCommit() override { return states().TakeBackCommit(); }
  Status CheckCommit() const override { return states().CheckCommit(); }
  Status ReadTile(offload::TileId tile, const StatePort::TileReader& read) override {
    return states().ReadTile(tile, read);
  }
  EngineCounters counters() const override { return states().counters(); }
  Bytes host_peak() const override { return states().host_peak(); }
  const std::string& aio_engine() const override { return states().aio_engine(); }
  const std::vector<std::string>& state_paths() const override { return states().state_paths(); }
  const std::string& state_uuid() const override { return states().state_uuid(); }
  const std::vector<std::string>& notices() const override { return states().notices(); }

 private:
  /// The states that the calls go to.
  virtual StatePort& states() const = 0;
};

}  // namespace penstock::zero
