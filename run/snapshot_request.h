// Asks the process that trains a run for a snapshot.
//
// A request is RUN/snapshots/.NAME.request, an empty file that its maker keeps locked. An unlocked
// file was left by a killed process and is not a request; the next request of its name replaces it.
// The training removes the file when it is done; if it could not take the snapshot, it leaves
// .NAME.answer with the run's UUID and the reason. Files with such names that are not empty and do
// not begin with that UUID belong to others, and stay unchanged. So does .NAME.failed, the answer
// of earlier versions, which has no UUID: nothing needs its name any more.
//
// Threads: one at a time for a name.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/folder.h"
#include "base/result.h"
#include "base/unshared_fd.h"

namespace penstock::train {

class SnapshotRequest {
 public:
  /// `run_uuid`: see RunInfo. Errors: kUnavailable while another process asks for the same;
  /// kInvalidArgument if somebody else's file has a name that is needed.
  static Result<SnapshotRequest> Make(const Folder& run, const std::string& run_uuid,
                                      const std::string& name);

  bool answered() const;
  /// To be called once the request is answered. Errors: kIo with the reason, if there is no
  /// snapshot.
  Status Answer() const;
  void TakeBack() const;

 private:
  SnapshotRequest(Folder snapshots, std::string run_uuid, std::string name, UnsharedFd lock)
      : snapshots_(std::move(snapshots)),
        run_uuid_(std::move(run_uuid)),
        name_(std::move(name)),
        lock_(std::move(lock)) {}

  Folder snapshots_;
  std::string run_uuid_;
  std::string name_;  ///< of the snapshot
  UnsharedFd lock_;
};

/// Returns the names of the requested snapshots, sorted.
std::vector<std::string> RequestedSnapshots(const Folder& run);

/// Returns false if the request stays because it cannot be removed.
bool AnswerRequest(const Folder& run, const std::string& run_uuid, const std::string& name,
                   const Status& taken);

/// Returns the run's requests and answers in RUN/snapshots, and what killed processes left of them.
Result<std::vector<FoundFile>> RequestFiles(const Folder& snapshots, const std::string& run_uuid);

}  // namespace penstock::train
