#include "run/moved_run.h"

#include <fmt/format.h>

#include <vector>

#include "run/leftovers.h"
#include "run/run_folder.h"
#include "run/snapshot.h"
#include "run/state_owner.h"

namespace penstock::train {
namespace {

bool ShareTheirState(const RunInfo& one, const RunInfo& other) {
  return one.state && other.state && one.state->uuid == other.state->uuid &&
         one.state->first() == other.state->first();
}

bool AreOneRun(const RunInfo& one, const RunInfo& other) {
  return (!one.run_uuid.empty() && one.run_uuid == other.run_uuid) || ShareTheirState(one, other);
}

bool IsHere(const Folder& run, const std::string& path) {
  const Result<bool> same = run.IsAt(path);
  return same.ok() && *same;
}

/// Whether the run of `info` is at `path` as well. What cannot be read counts as that.
bool IsAlsoAt(const std::string& path, const RunInfo& info, bool opened_there) {
  const Result<RunInfo> there = ReadRunInfo(path);
  if (!there.ok()) return there.error().code != ErrorCode::kNotFound;
  return AreOneRun(*there, info) && (!opened_there || there->place == path);
}

struct OpenedRun {
  Folder folder;
  RunInfo info;
};

/// The run around a snapshot, if it has its UUID.
std::optional<OpenedRun> RunAround(const Folder& snapshot, const RunInfo& info) {
  const std::optional<std::string> path = RunOfSnapshot(snapshot);
  if (!path) return std::nullopt;
  Result<Folder> run = OpenRun(*path);
  if (!run.ok()) return std::nullopt;
  Result<RunInfo> around = ReadRunInfo(*run);
  if (!around.ok() || around->run_uuid != info.run_uuid) return std::nullopt;
  return OpenedRun{*std::move(run), *std::move(around)};
}

}  // namespace

std::optional<std::string> OriginalOf(const Folder& run, const RunInfo& info) {
  std::vector<StateFiles> states = info.leftovers;
  if (info.state) states.insert(states.begin(), *info.state);
  for (const StateFiles& state : states) {
    std::string owner = OwnerOf(state);
    if (owner.empty() || IsHere(run, owner)) continue;
    // What is there may itself be a copy that has not been resumed, of this run.
    if (IsAlsoAt(owner, info, /*opened_there=*/true)) return owner;
  }
  if (info.place.empty() || IsHere(run, info.place)) return std::nullopt;
  if (!IsAlsoAt(info.place, info, /*opened_there=*/false)) return std::nullopt;
  return info.place;
}

bool IsCopy(const Folder& run, const RunInfo& info) { return OriginalOf(run, info).has_value(); }

std::string CopyNotice(const Folder& run, const std::string& original) {
  return fmt::format(
      "{} is a copy of {}: its newest commit is the original's until it has a state of its own",
      run.path(), original);
}

std::optional<std::string> LastPlaceElsewhere(const Folder& run, const RunInfo& info) {
  if (const std::optional<OpenedRun> around = RunAround(run, info)) {
    std::optional<std::string> original = OriginalOf(around->folder, around->info);
    return original ? original : LastPlaceElsewhere(around->folder, around->info);
  }
  std::string owner = info.state ? OwnerOf(*info.state) : std::string();
  if (!owner.empty() && !IsHere(run, owner)) return owner;
  if (info.place.empty() || IsHere(run, info.place)) return std::nullopt;
  return info.place;
}

void BecomeOwn(const Folder& run, const std::string& run_uuid, RunInfo* info) {
  const std::optional<std::string> path = OriginalOf(run, *info);
  const Result<RunInfo> original = ReadRunInfo(path.value_or(info->place));
  // One that was begun to be resumed as a copy has its own already.
  if (original.ok() && original->run_uuid != info->run_uuid) return;
  info->run_uuid = run_uuid;
  info->leftovers = FilesWithin(info->leftovers, run);
  info->copying.reset();
}

}  // namespace penstock::train
