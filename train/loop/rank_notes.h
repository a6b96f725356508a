// What the ranks of a training tell each other with every step: whether one is asked to stop, wants
// a commit or copies one, and its counters. So all ranks stop and commit after the same step, and
// rank 0 reads the counters of all.
//
// One rank alone tells nobody, and knows at any moment what it is asked. Threads: one.
#pragma once

#include <functional>
#include <vector>

#include "base/activity.h"
#include "base/result.h"
#include "base/units.h"
#include "comm/world.h"
#include "device/device.h"
#include "run/observers/snapshot_service.h"
#include "train/loop/metrics.h"
#include "zero/session/session.h"
#include "zero/step_note.h"

namespace penstock::train {

class RankNotes {
 public:
  /// What a rank reads its own note from; everything is borrowed.
  struct Parts {
    const zero::Session& session;
    const device::Device& device;
    const ActivityMeter& meter;
    std::function<bool()> stop_requested;
    const SnapshotService* snapshots = nullptr;  ///< none: nobody can ask this process for any
    /// With several ranks: tells all of them a note, and returns those of all, by rank.
    std::function<Result<std::vector<zero::StepNote>>(const zero::StepNote& note)> exchange;
  };
  /// `library_memory`: of the GPU, beside the device's.
  RankNotes(Parts parts, const comm::World& world, Bytes library_memory)
      : parts_(std::move(parts)), world_(world), library_memory_(library_memory) {}

  const comm::World& world() const { return world_; }
  bool alone() const { return world_.size == 1; }

  /// Returns what this rank tells the others. `commit_is_due`: by the clock.
  zero::StepNote Mine(bool commit_is_due) const;
  /// Takes what all have told with a step.
  void Take(std::vector<zero::StepNote> notes);
  /// Tells and takes notes between two steps.
  Status Exchange(bool commit_is_due);

  // As all ranks know it, so that all decide alike.
  bool StopRequested() const { return alone() ? parts_.stop_requested() : stop_requested_; }
  /// Whether somebody asks for a commit: the clock of rank 0, or somebody who wants a snapshot.
  bool CommitWanted(bool commit_is_due) const;
  /// Whether the newest commit is being copied.
  bool Copying() const { return alone() ? CopiesNow() : copying_; }
  /// Says that rank 0 begins to copy the newest commit.
  void CopyBegins() { copying_ = true; }

  /// Reads everything that is measured. Bytes are those of all ranks, as far as they have told;
  /// peaks are the largest.
  Reading Now() const;
  /// Returns for how many seconds each rank has waited for others, by rank; nothing if it is alone.
  std::vector<double> Waited() const;

 private:
  bool SnapshotWanted() const {
    return parts_.snapshots != nullptr && parts_.snapshots->Requested();
  }
  bool CopiesNow() const { return parts_.snapshots != nullptr && parts_.snapshots->copying(); }
  Bytes DevicePeak() const { return parts_.device.peak() + library_memory_; }

  const Parts parts_;
  const comm::World world_;
  const Bytes library_memory_;
  std::vector<zero::StepNote> notes_;  ///< by rank, the newest
  bool stop_requested_ = false;        ///< of any rank
  bool copying_ = false;               ///< the same
};

}  // namespace penstock::train
