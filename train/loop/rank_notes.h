// The notes that the ranks of a training exchange with every step: a request to stop, a wanted
// commit, a copy in progress, and counters. So all ranks stop and commit after the same step, and
// rank 0 has the counters of all.
//
// A single rank exchanges nothing, and sees requests at any moment. Threads: one.
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
  /// The sources of a rank's own note; everything is borrowed.
  struct Parts {
    const zero::Session& session;
    const device::Device& device;
    const ActivityMeter& meter;
    std::function<bool()> stop_requested;
    const SnapshotService* snapshots = nullptr;  ///< none: takes no requests
    /// With several ranks: sends a note to all, and returns those of all, by rank.
    std::function<Result<std::vector<zero::StepNote>>(const zero::StepNote& note)> exchange;
  };
  /// `library_memory`: GPU memory besides the device's.
  RankNotes(Parts parts, const comm::World& world, Bytes library_memory)
      : parts_(std::move(parts)), world_(world), library_memory_(library_memory) {}

  const comm::World& world() const { return world_; }
  bool alone() const { return world_.size == 1; }

  /// Returns this rank's note. `commit_is_due`: by the clock.
  zero::StepNote Mine(bool commit_is_due) const;
  /// Takes the notes of all ranks for a step.
  void Take(std::vector<zero::StepNote> notes);
  /// Exchanges notes between two steps.
  Status Exchange(bool commit_is_due);

  // Based on the exchanged notes, so that all ranks decide alike.
  bool StopRequested() const { return alone() ? parts_.stop_requested() : stop_requested_; }
  /// Whether a commit is wanted: by the clock of rank 0, or for a requested snapshot.
  bool CommitWanted(bool commit_is_due) const;
  /// Whether the newest commit is being copied.
  bool Copying() const { return alone() ? CopiesNow() : copying_; }
  /// Says that rank 0 begins to copy the newest commit.
  void CopyBegins() { copying_ = true; }

  /// Reads everything that is measured. Bytes are sums over the ranks' last notes; peaks are
  /// maxima.
  Reading Now() const;
  /// Returns the seconds for which each rank has waited for others, by rank; nothing for a single
  /// rank.
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
  std::vector<zero::StepNote> notes_;  ///< newest notes, by rank
  bool stop_requested_ = false;        ///< on any rank
  bool copying_ = false;               ///< on any rank
};

}  // namespace penstock::train
