// Takes the snapshots that `penstock snapshot` asks a run of the C interface for while it trains
// (run/snapshot_request.h).
//
// They are of the newest commit: another one needs the caller, whose text it holds. A thread copies
// it while the training continues (run/observers/snapshot_service.h). While the newest commit is in
// doubt, a request waits for the loss that decides on it; with one slot, for the next commit.
//
// Threads: one at a time; the copy runs on another.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/folder.h"
#include "base/mutex.h"
#include "run/observers/snapshot_service.h"
#include "run/run_info.h"
#include "zero/session/session.h"

namespace penstock::front {

class SnapshotAnswers {
 public:
  /// `run` outlives the object.
  SnapshotAnswers(const Folder& run, bool durable) : run_(run), durable_(durable) {}

  /// Takes what was asked for, between two steps. `info`: of the run, as run.json has it. Looks at
  /// RUN/snapshots and does nothing else if nothing was asked for, or a copy is under way.
  void Answer(const train::RunInfo& info, const zero::Session& session);
  /// Returns once no copy of the newest commit is under way: it is about to be replaced or taken
  /// back.
  void Release() {
    if (service_) service_->Wait();
  }
  /// Returns what could not be done since; each line once.
  std::vector<std::string> TakeNotices() EXCLUDES(mutex_);

 private:
  void Refuse(const train::RunInfo& info, const std::vector<std::string>& names) const;

  const Folder& run_;
  const bool durable_;
  Mutex mutex_;
  std::vector<std::string> notices_ GUARDED_BY(mutex_);
  std::optional<train::SnapshotService> service_;  ///< last: its thread writes notices
};

}  // namespace penstock::front
