#include "train/snapshot_service.h"

#include <fmt/format.h>

#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "offload/state_reader.h"
#include "train/log.h"
#include "train/snapshot.h"
#include "train/snapshot_request.h"

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
  PENSTOCK_TRY(CheckSnapshotName(name));
  PENSTOCK_ASSIGN(const std::unique_ptr<offload::StateReader> state,
                  offload::StateReader::Open(info_.state.paths, offload::StateLock::kHeld));
  return TakeSnapshot(run_, info_, *state, name, stop_requested_);
}

void SnapshotService::Answer(const std::string& name, const Status& taken) {
  if (!taken.ok()) LogNotice(fmt::format("snapshot {} failed: {}", name, taken.error().message));
  if (!AnswerRequest(run_, name, taken)) stuck_.insert(name);
}

void SnapshotService::CommitMade() {
  Wait();
  const std::vector<std::string> names = Open();
  if (names.empty()) return;
  copying_ = true;
  try {
    copier_ = std::thread([this, names] {
      for (const std::string& name : names) Answer(name, Take(name));
      copying_ = false;
    });
  } catch (const std::system_error& error) {
    const Error failure = MakeError(ErrorCode::kUnavailable,
                                    "the training cannot start a thread for the copy: {}; raise "
                                    "the limit of processes, or ask again later",
                                    error.what());
    for (const std::string& name : names) Answer(name, failure);
    copying_ = false;
  }
  if (!durable_) Wait();
}

}  // namespace penstock::train
