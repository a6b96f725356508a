// Asking the process that trains a run for a snapshot.
//
// A request is RUN/snapshots/.NAME.request, an empty file that its maker keeps locked: one that
// nobody holds was left by a killed process and is no request; the next one of its name replaces
// it. The training takes the file away when it is done, and leaves .NAME.failed with the reason
// where it could not take the snapshot.
//
// Threads: one at a time for a name.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace penstock::train {

class SnapshotRequest {
 public:
  static Result<SnapshotRequest> Make(const std::string& run, const std::string& name);

  bool answered() const;
  /// Once it is answered: kIo with the reason where there is no snapshot.
  Status Answer() const;
  void TakeBack() const;

 private:
  SnapshotRequest(std::string run, std::string name, UniqueFd lock)
      : run_(std::move(run)), name_(std::move(name)), lock_(std::move(lock)) {}

  std::string run_;
  std::string name_;
  UniqueFd lock_;
};

/// Names of what is asked for, sorted.
std::vector<std::string> RequestedSnapshots(const std::string& run);

/// False where the request stays, as it cannot be removed.
bool AnswerRequest(const std::string& run, const std::string& name, const Status& taken);

}  // namespace penstock::train
