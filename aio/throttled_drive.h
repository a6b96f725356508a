// A thread drive with the speed of an imaginary drive: the simulated engine.
//
// The model: one pipe for reads and one for writes (or one for both) that passes blocks one after
// the other at a fixed rate, and a latency that is added to every block and overlaps with that of
// others. A block is reported when the model has finished it; the bytes move at memory speed.
//
// Owns the thread drive below it. Threads: see aio/drive.h.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "aio/drive.h"
#include "aio/thread_drive.h"

namespace penstock::aio {

/// Computes when blocks that enter a simulated drive end. Pure except for its own state.
class SpeedModel {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit SpeedModel(const SimulatedDrive& speed) : speed_(speed) {}
  /// The moment at which a block that enters at `now` is done. `now` must not go backwards.
  Time Enter(Operation operation, Bytes size, Time now);

 private:
  const SimulatedDrive speed_;
  std::array<Time, 2> pipe_free_{};  ///< indexed by operation; with `shared` only the first is used
};

class ThrottledDrive final : public Drive {
 public:
  ThrottledDrive(std::unique_ptr<ThreadDrive> base, const SimulatedDrive& speed, int queue_depth);

  void Submit(const BlockOperation& block) override;
  void Reap(bool wait, std::vector<BlockResult>& results) override;
  void Wake() override { base_->Wake(); }
  int thread_count() const override { return base_->thread_count(); }
  const std::string& name() const override { return name_; }

 private:
  struct Waiting {
    SpeedModel::Time due;
    BlockResult result;
  };
  void ReportDue(std::vector<BlockResult>& results);
  static bool DueLater(const Waiting& a, const Waiting& b) { return a.due > b.due; }

  const std::string name_ = "simulated";
  const std::unique_ptr<ThreadDrive> base_;
  SpeedModel model_;
  std::vector<SpeedModel::Time> due_;  ///< indexed by slot
  std::vector<Waiting> waiting_;       ///< moved but not due yet; a heap, the earliest in front
};

}  // namespace penstock::aio
