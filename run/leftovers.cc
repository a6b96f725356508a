#include "run/leftovers.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "offload/caller_file.h"
#include "offload/state_removal.h"
#include "run/committed_run.h"
#include "run/run_folder.h"
#include "run/state_owner.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

bool IsThere(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

/// Whether some rank's path 0 is there; `empty`: and has nothing in it yet.
bool HasPath0(const StateFiles& state, bool empty) {
  return std::ranges::any_of(state.ranks, [&](const RankFiles& rank) {
    std::error_code ignored;
    const std::string& path = rank.paths.front();
    return IsThere(path) && (!empty || fs::file_size(path, ignored) == 0);
  });
}

/// Succeeds if a state that cannot be opened never had a commit: it has no file, or a path 0 that
/// says so, or was cut off while its files were made. Path 0 is made first and removed last, so
/// without it other files say that its drive is not there.
Status CheckNeverWhole(const StateFiles& state, const Error& error) {
  if (error.code == ErrorCode::kCorruption && HasPath0(state, /*empty=*/true)) return {};
  if (error.code != ErrorCode::kNotFound) return error;
  const std::vector<std::string> files = state.all();
  const auto other = std::ranges::find_if(files, IsThere);
  if (HasPath0(state, /*empty=*/false) || other == files.end()) return {};
  return MakeError(ErrorCode::kCorruption,
                   "{} is not there, and {}, of the same state, is: whether it holds a commit "
                   "cannot be known; mount its drive, or remove the run (penstock clean) if that "
                   "is lost",
                   state.first(), *other);
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
  // Path 0 last: if this is cut off, it says that there was no commit.
  const std::vector<std::string> files = state.all();
  for (const std::string& path : std::vector(files.rbegin(), files.rend())) {
    std::error_code ignored;
    const bool drive_is_there = fs::exists(fs::path(path).parent_path(), ignored);
    if (drive_is_there && !IsThere(path)) {
      note(offload::RemoveCallerFiles(path));  // of a path 0 that somebody removed alone
      continue;
    }
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

void TakeLeftovers(const RunInfo& before, const Folder& run, bool is_copy, RunInfo* info) {
  info->leftovers = before.leftovers;
  std::erase_if(info->leftovers,
                [&](const StateFiles& left) { return left.uuid == info->state->uuid; });
  if (!before.state || before.state->uuid == info->state->uuid) return;
  const std::vector<StateFiles> old = {*before.state};
  const std::vector<StateFiles> own = is_copy ? FilesWithin(old, run) : old;
  info->leftovers.insert(info->leftovers.end(), own.begin(), own.end());
}

void RemoveLeftovers(const std::function<bool(const StateFiles& left)>& remove, RunInfo* info) {
  std::erase_if(info->leftovers, [&](const StateFiles& left) {
    return (info->state && info->state->uuid == left.uuid) || remove(left);
  });
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
    PENSTOCK_TRY(CheckNeverWhole(*left, state.error()));
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
