#include "run/leftovers.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "offload/state_removal.h"
#include "run/committed_run.h"
#include "run/run_folder.h"
#include "run/state_owner.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

/// Whether a state of which one file cannot be used never had a commit: it has no file, or was cut
/// off while its files were made.
bool WasNeverWhole(const StateFiles& state, const Error& error) {
  std::error_code ignored;
  const auto missing = [&](const std::string& path) { return !fs::exists(path, ignored); };
  if (error.code == ErrorCode::kNotFound) return true;
  return error.code == ErrorCode::kCorruption &&
         std::ranges::any_of(state.ranks, [&](const RankFiles& rank) {
           return missing(rank.paths.front()) || fs::file_size(rank.paths.front(), ignored) == 0;
         });
}

}  // namespace

bool RemoveState(const StateFiles& state, const std::vector<std::string>& runs,
                 const Notify& notify) {
  bool gone = true;
  const auto note = [&](const Status& removed) {
    if (removed.ok()) return;
    gone = false;
    notify(removed.error().message);
  };
  for (const std::string& path : state.all()) {
    std::error_code ignored;
    const bool drive_is_there = fs::exists(fs::path(path).parent_path(), ignored);
    if (drive_is_there && !fs::exists(fs::symlink_status(path, ignored))) continue;
    Result<offload::RemovableState> file = offload::RemovableState::Open(path, state.uuid);
    note(file.ok() ? file->Remove() : Status(file.error()));
  }
  if (!gone) return false;
  const Result<std::optional<OwnerFiles>> owner = FindOwner(state, runs);
  note(owner.status());
  if (!owner.ok() || !*owner) return gone;
  for (const FoundFile& file : (*owner)->files) {
    note((*owner)->folder.RemoveFile(file.name, file.id));
  }
  return gone;
}

std::vector<StateFiles> FilesWithin(const std::vector<StateFiles>& states, const Folder& run) {
  std::vector<StateFiles> within;
  for (const StateFiles& state : states) {
    StateFiles own{.ranks = {}, .uuid = state.uuid};
    for (const RankFiles& rank : state.ranks) {
      RankFiles files{.paths = {}, .host = rank.host};
      for (const std::string& path : rank.paths) {
        const Result<bool> in_run = run.IsAt(SplitPath(path).first);
        if (in_run.ok() && *in_run) files.paths.push_back(path);
      }
      if (!files.paths.empty()) own.ranks.push_back(std::move(files));
    }
    if (!own.ranks.empty()) within.push_back(std::move(own));
  }
  return within;
}

Status TakeUnnamedCommit(RunInfo* info) {
  if (info->state) return {};
  for (auto left = info->leftovers.begin(); left != info->leftovers.end(); ++left) {
    const auto state = OpenFiles(*left, offload::StateLock::kShared);
    if (state.ok()) {
      info->state = *left;
      info->leftovers.erase(left);
      return {};
    }
    if (!WasNeverWhole(*left, state.error())) return state.error();
  }
  return {};
}

Result<RunInfo> ReadCommittedInfo(const Folder& run) {
  PENSTOCK_ASSIGN(RunInfo info, ReadRunInfo(run));
  const Status taken = TakeUnnamedCommit(&info);
  if (!taken.ok() && taken.error().code != ErrorCode::kUnavailable) return taken.error();
  return info;
}

Result<RunInfo> ReadCommittedInfo(const std::string& path) {
  PENSTOCK_ASSIGN(const Folder run, OpenRun(path));
  return ReadCommittedInfo(run);
}

}  // namespace penstock::train
