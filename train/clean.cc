#include "train/clean.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "base/folder.h"
#include "train/run_folder.h"
#include "train/snapshot.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

bool IsEmptyFolder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) && fs::is_empty(path, ignored);
}

Status FindStates(const StateFiles& files, CleanPlan* plan) {
  for (const std::string& path : files.paths) {
    Result<offload::RemovableState> state = offload::RemovableState::Open(path, files.uuid);
    if (state.ok()) {
      plan->states.push_back(std::move(state).value());
    } else if (state.error().code == ErrorCode::kNotFound) {
      plan->missing_states.push_back(path);
    } else {
      return state.error();
    }
  }
  return {};
}

/// One that is gone by now needs no removal.
Status AddFile(const std::string& path, CleanPlan* plan) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  if (error == std::errc::no_such_file_or_directory) return {};
  if (error) return ErrnoError(error.value(), "looking at " + path);
  plan->items.push_back({path, Bytes{size}});
  return {};
}

/// With the folder itself.
Status AddFilesOfRun(const std::string& folder, CleanPlan* plan) {
  PENSTOCK_ASSIGN(const std::vector<std::string> files, FilesOfRun(folder));
  for (const std::string& path : files) PENSTOCK_TRY(AddFile(path, plan));
  plan->items.push_back({folder, std::nullopt});
  return {};
}

/// A folder without run.json is empty where a removal was cut off; else it is not the run's.
Status FindSnapshot(const std::string& folder, CleanPlan* plan) {
  const Result<RunInfo> info = ReadRunInfo(folder);
  if (!info.ok() && info.error().code == ErrorCode::kNotFound) {
    if (IsEmptyFolder(folder)) plan->items.push_back({folder, std::nullopt});
    return {};
  }
  PENSTOCK_TRY(info.status());
  PENSTOCK_TRY(FindStates(info->state, plan));
  return AddFilesOfRun(folder, plan);
}

Status FindUnfinished(const std::string& folder, CleanPlan* plan) {
  PENSTOCK_ASSIGN(const StateFiles files, FilesOfUnfinished(folder));
  PENSTOCK_TRY(FindStates(files, plan));
  return AddFilesOfRun(folder, plan);
}

/// A request for a snapshot or its answer, and what a killed process left of one.
bool IsRequestFile(const std::string& name) {
  const std::string whole = name.substr(0, name.find(".tmp-"));
  return whole.ends_with(".request") || whole.ends_with(".failed");
}

/// Snapshots, and, with names that begin with '.', requests, answers and unfinished snapshots.
Status FindSnapshots(CleanPlan* plan) {
  const std::string all = SnapshotsFolder(plan->run);
  std::error_code error;
  if (!fs::is_directory(all, error)) return {};
  fs::directory_iterator it(all, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string path = it->path().string();
    const std::string name = it->path().filename().string();
    const bool hidden = name.starts_with('.');
    std::error_code ignored;
    if (it->is_symlink(ignored)) continue;
    if (it->is_directory(ignored)) {
      if (!hidden) PENSTOCK_TRY(FindSnapshot(path, plan));
      if (hidden && name.ends_with(".unfinished")) PENSTOCK_TRY(FindUnfinished(path, plan));
    } else if (hidden && IsRequestFile(name)) {
      PENSTOCK_TRY(AddFile(path, plan));
    }
  }
  if (error) return ErrnoError(error.value(), "listing " + all);
  plan->items.push_back({all, std::nullopt});
  return {};
}

/// In RUN and in the folders of its snapshots.
Status FindKept(CleanPlan* plan) {
  std::set<std::string> going;
  for (const offload::RemovableState& state : plan->states) going.insert(state.path());
  for (const CleanPlan::Item& item : plan->items) going.insert(item.path);
  for (const CleanPlan::Item& item : plan->items) {
    if (item.size) continue;
    std::error_code error;
    fs::directory_iterator it(item.path, error);
    for (; !error && it != fs::directory_iterator(); it.increment(error)) {
      const std::string path = it->path().string();
      if (!going.contains(path)) plan->kept.push_back(path);
    }
    if (error) return ErrnoError(error.value(), "listing " + item.path);
  }
  std::ranges::sort(plan->kept);
  return {};
}

Status FindAll(CleanPlan* plan) {
  PENSTOCK_ASSIGN(const RunInfo info, ReadRunInfo(plan->run));
  PENSTOCK_TRY(FindStates(info.state, plan));
  for (const StateFiles& state : info.leftovers) PENSTOCK_TRY(FindStates(state, plan));
  PENSTOCK_TRY(FindSnapshots(plan));
  PENSTOCK_TRY(AddFilesOfRun(plan->run, plan));
  return FindKept(plan);
}

/// A folder that holds something else stays, and so do those around it.
Status Remove(const CleanPlan::Item& item) {
  std::error_code error;
  fs::remove(item.path, error);
  if (!error || (!item.size && error == std::errc::directory_not_empty)) return {};
  return ErrnoError(error.value(), "removing " + item.path);
}

}  // namespace

Result<CleanPlan> PlanClean(const std::string& run) {
  // Before anything is said of a lock: is it a run?
  if (!IsEmptyFolder(run)) PENSTOCK_TRY(ReadRunInfo(run).status());
  PENSTOCK_ASSIGN(RunLock lock, RunLock::Take(run));
  std::error_code error;
  CleanPlan plan{.lock = std::move(lock)};
  plan.run = fs::canonical(run, error).string();
  if (error) return ErrnoError(error.value(), "looking at " + run);
  if (IsEmptyFolder(plan.run)) {
    plan.items.push_back({plan.run, std::nullopt});
  } else {
    PENSTOCK_TRY(FindAll(&plan));
  }
  return plan;
}

Status Clean(const CleanPlan& plan) {
  for (const offload::RemovableState& state : plan.states) PENSTOCK_TRY(state.Remove());
  for (const CleanPlan::Item& item : plan.items) PENSTOCK_TRY(Remove(item));
  std::error_code ignored;
  const bool stays = fs::exists(plan.run, ignored);
  return SyncFolder(stays ? plan.run : fs::path(plan.run).parent_path().string());
}

std::string ToText(const CleanPlan& plan, bool removed) {
  std::string text;
  Bytes total;
  const auto line = [&](const std::string& path, Bytes size) {
    text += fmt::format("{:>12}  {}\n", ToString(size), path);
    total += size;
  };
  for (const offload::RemovableState& state : plan.states) line(state.path(), state.size());
  for (const CleanPlan::Item& item : plan.items) {
    if (item.size) line(item.path, *item.size);
  }
  for (const std::string& path : plan.missing_states) {
    text += fmt::format("{:>12}  {}\n", "not there", path);
  }
  const char* const stays = removed ? "kept" : "stays";
  for (const std::string& path : plan.kept) {
    text += fmt::format("{:>12}  {}, which is not the run's\n", stays, path);
  }
  if (!plan.kept.empty()) text += fmt::format("{:>12}  {}, which holds that\n", stays, plan.run);
  return text + fmt::format(fmt::runtime(removed ? "removed {}\n"
                                                 : "would remove {}; nothing is removed without "
                                                   "--yes\n"),
                            ToString(total));
}

}  // namespace penstock::train
