#include "train/clean.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/folder.h"
#include "train/run_folder.h"
#include "train/snapshot.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

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

Status AddFile(const std::string& path, CleanPlan* plan) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  if (error) return ErrnoError(error.value(), "looking at " + path);
  plan->files.push_back({path, Bytes{size}});
  return {};
}

Status AddFilesOfRun(const std::string& folder, CleanPlan* plan) {
  PENSTOCK_ASSIGN(const std::vector<std::string> files, FilesOfRun(folder));
  for (const std::string& path : files) PENSTOCK_TRY(AddFile(path, plan));
  return {};
}

bool IsCopy(const std::string& file_name) {
  return file_name.find(".snapshot-") != std::string::npos;
}

/// Copies of the state that a killed process left beside it, before a snapshot named them.
Status FindUnfinishedCopies(const RunInfo& info, CleanPlan* plan) {
  // Of a snapshot there are none; beside it lie others.
  if (IsCopy(fs::path(info.state.paths.front()).filename().string())) return {};
  const std::string prefix = "penstock-" + info.state.uuid;
  for (const std::string& path : info.state.paths) {
    std::error_code error;
    fs::directory_iterator it(fs::path(path).parent_path(), error);
    for (; !error && it != fs::directory_iterator(); it.increment(error)) {
      const std::string name = it->path().filename().string();
      const bool copy = name.starts_with(prefix) && IsCopy(name);
      const auto is_planned = [&](const auto& state) { return state.path() == it->path(); };
      if (!copy || std::ranges::any_of(plan->states, is_planned)) continue;
      PENSTOCK_TRY(AddFile(it->path().string(), plan));
    }
  }
  return {};
}

/// Requests, answers and unfinished snapshots: everything in RUN/snapshots whose name begins with
/// '.'.
Status FindHidden(CleanPlan* plan) {
  const std::string all = SnapshotsFolder(plan->run);
  std::error_code error;
  if (!fs::is_directory(all, error)) return {};
  fs::directory_iterator it(all, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    if (!it->path().filename().string().starts_with('.')) continue;
    if (!it->is_directory(error)) {
      PENSTOCK_TRY(AddFile(it->path().string(), plan));
      continue;
    }
    for (const auto& entry : fs::directory_iterator(it->path(), error)) {
      PENSTOCK_TRY(AddFile(entry.path().string(), plan));
    }
    plan->folders.push_back(it->path().string());
  }
  if (error) return ErrnoError(error.value(), "listing " + all);
  plan->folders.push_back(all);
  return {};
}

Status FindSnapshots(const RunInfo& info, CleanPlan* plan) {
  for (const std::string& name : Snapshots(plan->run)) {
    const std::string folder = SnapshotFolder(plan->run, name);
    PENSTOCK_ASSIGN(const RunInfo snapshot, ReadRunInfo(folder));
    PENSTOCK_TRY(FindStates(snapshot.state, plan));
    PENSTOCK_TRY(AddFilesOfRun(folder, plan));
    plan->folders.push_back(folder);
  }
  PENSTOCK_TRY(FindUnfinishedCopies(info, plan));
  return FindHidden(plan);
}

Status FindFiles(CleanPlan* plan) {
  PENSTOCK_TRY(AddFilesOfRun(plan->run, plan));
  std::error_code error;
  fs::directory_iterator it(plan->run, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    const std::string path = it->path().string();
    const auto is = [&path](const std::string& other) {
      std::error_code ignored;
      return fs::equivalent(path, other, ignored);
    };
    const bool goes =
        std::ranges::any_of(plan->files, [&is](const auto& file) { return is(file.path); }) ||
        std::ranges::any_of(plan->states, [&is](const auto& state) { return is(state.path()); }) ||
        std::ranges::any_of(plan->folders, is);
    if (!goes) plan->kept.push_back(path);
  }
  if (error) return ErrnoError(error.value(), "listing " + plan->run);
  std::sort(plan->kept.begin(), plan->kept.end());
  return {};
}

}  // namespace

Result<CleanPlan> PlanClean(const std::string& run) {
  PENSTOCK_TRY(ReadRunInfo(run).status());  // before anything is said of a lock: is it a run?
  PENSTOCK_ASSIGN(RunLock lock, RunLock::Take(run));
  PENSTOCK_ASSIGN(const RunInfo info, ReadRunInfo(run));
  std::error_code error;
  CleanPlan plan{.lock = std::move(lock)};
  plan.run = fs::canonical(run, error).string();
  if (error) return ErrnoError(error.value(), "looking at " + run);
  PENSTOCK_TRY(FindStates(info.state, &plan));
  for (const StateFiles& state : info.leftovers) PENSTOCK_TRY(FindStates(state, &plan));
  PENSTOCK_TRY(FindSnapshots(info, &plan));
  PENSTOCK_TRY(FindFiles(&plan));
  return plan;
}

Status Clean(const CleanPlan& plan) {
  for (const offload::RemovableState& state : plan.states) PENSTOCK_TRY(state.Remove());
  std::error_code error;
  for (const CleanPlan::File& file : plan.files) {
    fs::remove(file.path, error);
    if (error) return ErrnoError(error.value(), "removing " + file.path);
  }
  // One that holds something else stays, and so does the run's folder around it.
  for (const std::string& folder : plan.folders) fs::remove(folder, error);
  if (!fs::is_empty(plan.run, error)) return SyncFolder(plan.run);
  fs::remove(plan.run, error);
  if (error) return ErrnoError(error.value(), "removing " + plan.run);
  return SyncFolder(fs::path(plan.run).parent_path().string());
}

std::string ToText(const CleanPlan& plan, bool removed) {
  std::string text;
  Bytes total;
  const auto line = [&](const std::string& path, Bytes size) {
    text += fmt::format("{:>12}  {}\n", ToString(size), path);
    total += size;
  };
  for (const offload::RemovableState& state : plan.states) line(state.path(), state.size());
  for (const CleanPlan::File& file : plan.files) line(file.path, file.size);
  for (const std::string& path : plan.missing_states) {
    text += fmt::format("{:>12}  {}\n", "not there", path);
  }
  for (const std::string& path : plan.kept) {
    text += fmt::format("{:>12}  {}, which is not the run's\n", removed ? "kept" : "stays", path);
  }
  return text + fmt::format(fmt::runtime(removed ? "removed {}\n"
                                                 : "would remove {}; nothing is removed without "
                                                   "--yes\n"),
                            ToString(total));
}

}  // namespace penstock::train
