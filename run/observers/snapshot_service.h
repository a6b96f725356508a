// Takes the snapshots that are asked for while a run is training.
//
// A request makes the training commit. A thread of the service copies the commit while training
// continues. Until the copy is complete no other commit is made, which would give up the slots
// being copied. With one slot training waits for the copy. Automatic snapshots
// (run/automatic_snapshots.h) are taken in the same way.
//
// Threads: as of a StepObserver; the copy runs on another.
#pragma once

#include <atomic>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/folder.h"
#include "base/notify.h"
#include "run/observers/step_observer.h"
#include "run/run_folder.h"

namespace penstock::train {

class SnapshotService final : public StepObserver {
 public:
  /// `run` outlives the service. `info` names the state; its files are locked by this process as
  /// long as the service lives. `stop_requested` is asked while copying, so that a training that
  /// has to end need not wait. `notify` gets the snapshots that could not be taken. `keep`: number
  /// of automatic snapshots that stay.
  SnapshotService(const Folder& run, RunInfo info, bool durable, uint64_t keep,
                  std::function<bool()> stop_requested, Notify notify)
      : run_(run),
        info_(std::move(info)),
        durable_(durable),
        keep_(keep),
        stop_requested_(std::move(stop_requested)),
        notify_(std::move(notify)) {}
  /// Waits for a copy that is being made.
  ~SnapshotService() override { Wait(); }

  /// Whether a snapshot was requested and not yet taken. False while copying.
  bool Requested() const { return !Open().empty(); }
  bool copying() const { return copying_; }
  void Wait();

  void ReleaseCommit() override { Wait(); }
  /// Takes the requested snapshots of the commit. A failure is reported to the program that asked
  /// and to `notify`; training continues.
  Status AfterCommit() override;
  /// Takes an automatic snapshot. Failures are reported to `notify`; training continues.
  /// Precondition: two slots.
  void KeepCommit() override;

 private:
  /// Runs `copy` on a thread, or `refused` if there is none.
  void Copy(std::function<void()> copy, const std::function<void(const Error&)>& refused);
  Status TakeAutomatic() const;
  std::vector<std::string> Open() const;
  Status Take(const std::string& name) const;
  void Answer(const std::string& name, const Status& taken);

  const Folder& run_;
  const RunInfo info_;
  const bool durable_;
  const uint64_t keep_;
  const std::function<bool()> stop_requested_;
  const Notify notify_;
  std::set<std::string> stuck_;  ///< answered requests that could not be removed; of the copier
  std::atomic<bool> copying_ = false;
  std::thread copier_;
};

}  // namespace penstock::train
