#include "run/observers/snapshot_service.h"

#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/thread.h"
#include "offload/whole_state.h"
#include "run/automatic_snapshots.h"
#include "run/committed_run.h"
#include "run/snapshot.h"
#include "run/snapshot_request.h"

namespace penstock::train {

std::vector<std::string> SnapshotService::Open() const {
  std::vector<std::string> names = RequestedSnapshots(run_);
  std::erase_if(names, [this](const std::string& name) { return stuck_.contains(name); });
  return names;
}

void SnapshotService::Wait() {
  if (copier_.joinable()) copier_.join();
}

Status SnapshotService::Take(const std::string& name) const {
  PENSTOCK_TRY(CheckNewSnapshotName(name));
  PENSTOCK_ASSIGN(const offload::WholeState state,
                  OpenCommitToCopy(info_, offload::StateLock::kHeld));
  return TakeSnapshot(run_, info_, state, name, stop_requested_, notify_);
}

void SnapshotService::Answer(const std::string& name, const Status& taken) {
  if (!taken.ok()) notify_(fmt::format("snapshot {} failed: {}", name, taken.error().message));
  if (!AnswerRequest(run_, info_.run_uuid, name, taken)) stuck_.insert(name);
}

void SnapshotService::Copy(std::function<void()> copy,
                           const std::function<void(const Error&)>& refused) {
  copying_ = true;
  Result<std::thread> copier =
      StartThread("the copy of a snapshot", [this, copy = std::move(copy)] {
        copy();
        copying_ = false;
      });
  if (copier.ok()) {
    copier_ = *std::move(copier);
  } else {
    refused(copier.error());
    copying_ = false;
  }
}

Status SnapshotService::AfterCommit() {
  Wait();
  const std::vector<std::string> names = Open();
  if (names.empty()) return {};
  Copy(
      [this, names] {
        for (const std::string& name : names) Answer(name, Take(name));
      },
      [this, &names](const Error& why) {
        for (const std::string& name : names) Answer(name, why);
      });
  if (!durable_) Wait();
  return {};
}

Status SnapshotService::TakeAutomatic() const {
  PENSTOCK_ASSIGN(const offload::WholeState state,
                  OpenCommitToCopy(info_, offload::StateLock::kHeld));
  return TakeAutomaticSnapshot(run_, info_, state, keep_, stop_requested_, notify_);
}

void SnapshotService::KeepCommit() {
  PENSTOCK_CHECK(durable_);
  Wait();
  const auto failed = [this](const Error& why) { notify_("automatic snapshots: " + why.message); };
  Copy(
      [this, failed] {
        const Status taken = TakeAutomatic();
        if (!taken.ok()) failed(taken.error());
      },
      failed);
}

}  // namespace penstock::train
