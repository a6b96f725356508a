#include "train/snapshot.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/folder.h"
#include "offload/state_copy.h"
#include "offload/state_removal.h"
#include "train/interrupt.h"
#include "train/log.h"
#include "train/metrics.h"
#include "train/resume.h"
#include "train/run_lock.h"
#include "train/snapshot_request.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;
using offload::StateReader;

constexpr auto kAskAgain = std::chrono::milliseconds(50);
constexpr std::string_view kUnfinished = ".unfinished";

/// Where the state of a snapshot goes, for each path: `unfinished` is the folder
/// ".NAME.unfinished".
std::vector<std::string> TargetPaths(const std::string& run, const StateFiles& state,
                                     const fs::path& unfinished) {
  const std::string name = unfinished.stem().string().substr(1);
  std::vector<std::string> targets;
  for (const std::string& path : state.paths) {
    const fs::path file = path;
    std::error_code ignored;
    if (fs::equivalent(file.parent_path(), run, ignored)) {
      targets.push_back((fs::absolute(unfinished, ignored) / file.filename()).string());
    } else {
      const std::string stem = file.stem().string();
      targets.push_back(
          (file.parent_path() / fmt::format("{}.snapshot-{}.state", stem, name)).string());
    }
  }
  return targets;
}

fs::path UnfinishedFolder(const std::string& run, const std::string& name) {
  return SnapshotFolder(run, fmt::format(".{}{}", name, kUnfinished));
}

/// The folder last: it says which the files are.
Status RemoveUnfinished(const fs::path& folder) {
  PENSTOCK_ASSIGN(const StateFiles files, FilesOfUnfinished(folder.string()));
  for (const std::string& path : files.paths) {
    PENSTOCK_ASSIGN(const auto file, offload::RemovableState::Open(path, files.uuid));
    PENSTOCK_TRY(file.Remove());
  }
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) return ErrnoError(error.value(), "removing " + folder.string());
  return {};
}

void RemoveOrSay(const fs::path& folder) {
  const Status removed = RemoveUnfinished(folder);
  if (removed.ok()) return;
  LogNotice("an unfinished snapshot is left behind: " + removed.error().message);
}

/// Names in RUN/snapshots for which `name_of` has one.
std::vector<std::string> NamesIn(
    const std::string& run, const std::function<std::string(const fs::directory_entry&)>& name_of) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(SnapshotsFolder(run), error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    std::string name = name_of(*it);
    if (!name.empty()) names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  return names;
}

Status CheckNotTaken(const std::string& run, const std::string& name) {
  const std::string folder = SnapshotFolder(run, name);
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(folder, ignored))) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "there is {} already; take another name, or remove it with penstock clean {}",
                   folder, folder);
}

/// Before they are noted as the snapshot's: a file that is there may be one that was moved away.
Status CheckFree(const std::vector<std::string>& targets) {
  for (const std::string& target : targets) {
    for (const std::string& path : {target, offload::UnfinishedCopy(target)}) {
      std::error_code ignored;
      if (!fs::exists(fs::symlink_status(path, ignored))) continue;
      return MakeError(ErrorCode::kInvalidArgument,
                       "there is {} already, of a snapshot whose folder is not in RUN any more; "
                       "take another name, or remove that file if it is of no use",
                       path);
    }
  }
  return {};
}

Status CopyMetrics(const std::string& run, const RunInfo& info, const fs::path& folder,
                   const StateReader& state) {
  PENSTOCK_ASSIGN(const CommitTexts texts, ReadCommitTexts(state.commit().json, state.path(0)));
  const std::string rows = info.rows_from ? SnapshotFolder(run, *info.rows_from) : run;
  PENSTOCK_TRY(CopyRows(rows, folder.string()));
  return MetricsWriter::Resume(RunFolder::MetricsPathIn(folder.string()), state.commit().step,
                               texts.row)
      .status();
}

/// An error leaves the unfinished folder, and what it names.
Status MakeSnapshot(const std::string& run, const RunInfo& info, const StateReader& state,
                    const std::string& name, const std::function<bool()>& stop_requested) {
  const fs::path folder = SnapshotFolder(run, name);
  const fs::path unfinished = UnfinishedFolder(run, name);
  std::error_code error;
  fs::create_directories(unfinished, error);
  if (error) return ErrnoError(error.value(), "creating " + unfinished.string());
  RunInfo kept = info;
  kept.state.paths = TargetPaths(run, info.state, unfinished);
  PENSTOCK_TRY(CheckFree(kept.state.paths));
  kept.leftovers.clear();
  kept.rows_from.reset();
  PENSTOCK_TRY(WriteRunInfo(unfinished.string(), kept));
  PENSTOCK_TRY(SyncFolder(SnapshotsFolder(run)));
  PENSTOCK_TRY(SyncFolder(run));
  PENSTOCK_TRY(offload::CopyState(state, kept.state.paths, stop_requested));
  PENSTOCK_TRY(CopyMetrics(run, info, unfinished, state));
  fs::rename(unfinished, folder, error);
  if (error) return ErrnoError(error.value(), "naming " + folder.string());
  return SyncFolder(SnapshotsFolder(run));
}

/// Asks the process that trains the run, and waits for its answer, or until the run can be had:
/// then its lock.
Result<std::optional<RunLock>> AskTrainer(const SnapshotCommand& command) {
  PENSTOCK_ASSIGN(const SnapshotRequest request, SnapshotRequest::Make(command.run, command.name));
  const Interrupt interrupt("penstock: taking the request back; interrupt again to quit at once");
  while (!request.answered()) {
    Result<RunLock> lock = RunLock::TryTake(command.run);
    if (lock.ok() || interrupt.requested()) request.TakeBack();
    // The training ended without having seen the request.
    if (lock.ok()) return std::optional(*std::move(lock));
    if (interrupt.requested()) {
      return MakeError(ErrorCode::kCancelled,
                       "interrupted: the request is taken back, unless the copy had begun");
    }
    std::this_thread::sleep_for(kAskAgain);
  }
  PENSTOCK_TRY(request.Answer());
  return std::optional<RunLock>();
}

/// Without a training: the lock is ours.
Status TakeOfStoppedRun(const SnapshotCommand& command) {
  PENSTOCK_ASSIGN(const RunInfo info, ReadRunInfo(command.run));
  PENSTOCK_ASSIGN(const std::unique_ptr<StateReader> state, StateReader::Open(info.state.paths));
  if (!state->notice().empty()) LogNotice(state->notice());
  const Interrupt interrupt("penstock: removing what was copied; interrupt again to quit at once");
  return TakeSnapshot(command.run, info, *state, command.name,
                      [&interrupt] { return interrupt.requested(); });
}

}  // namespace

std::string SnapshotsFolder(const std::string& run) {
  return (fs::path(run) / "snapshots").string();
}
std::string SnapshotFolder(const std::string& run, const std::string& name) {
  return (fs::path(SnapshotsFolder(run)) / name).string();
}

Status CheckSnapshotName(const std::string& name) {
  const auto fits = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == '-';
  };
  if (!name.empty() && name.size() <= 64 && name.front() != '.' &&
      std::ranges::all_of(name, fits)) {
    return {};
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "\"{}\" is no name for a snapshot; take up to 64 letters, digits, '.', '_' and "
                   "'-', not beginning with '.'",
                   name);
}

std::vector<std::string> Snapshots(const std::string& run) {
  return NamesIn(run, [](const fs::directory_entry& entry) {
    std::error_code ignored;
    const std::string name = entry.path().filename().string();
    return !name.starts_with('.') && fs::exists(entry.path() / "run.json", ignored) ? name
                                                                                    : std::string();
  });
}

std::optional<std::string> RunOfSnapshot(const std::string& folder) {
  std::error_code error;
  const fs::path all = fs::canonical(folder, error).parent_path();
  const std::string run = all.parent_path().string();
  if (error || all != SnapshotsFolder(run) || !ReadRunInfo(run).ok()) return {};
  return run;
}

std::vector<std::string> UnfinishedSnapshots(const std::string& run) {
  return NamesIn(run, [](const fs::directory_entry& entry) {
    return entry.path().extension() == kUnfinished ? entry.path().string() : std::string();
  });
}

Result<StateFiles> FilesOfUnfinished(const std::string& folder) {
  const Result<RunInfo> info = ReadRunInfo(folder);
  // The copy was not begun.
  if (!info.ok() && info.error().code == ErrorCode::kNotFound) return StateFiles{};
  PENSTOCK_TRY(info.status());
  StateFiles there{.uuid = info->state.uuid};
  for (const std::string& whole : info->state.paths) {
    for (const std::string& path : {whole, offload::UnfinishedCopy(whole)}) {
      std::error_code ignored;
      const bool drive_is_there = fs::exists(fs::path(path).parent_path(), ignored);
      if (drive_is_there && !fs::exists(fs::symlink_status(path, ignored))) continue;
      there.paths.push_back(path);
    }
  }
  return there;
}

void RemoveUnfinishedSnapshots(const std::string& run) {
  for (const std::string& folder : UnfinishedSnapshots(run)) RemoveOrSay(folder);
}

Status TakeSnapshot(const std::string& run, const RunInfo& info, const StateReader& state,
                    const std::string& name, const std::function<bool()>& stop_requested) {
  PENSTOCK_TRY(CheckNotTaken(run, name));
  const fs::path unfinished = UnfinishedFolder(run, name);
  PENSTOCK_TRY(RemoveUnfinished(unfinished));
  Status made = MakeSnapshot(run, info, state, name, stop_requested);
  if (!made.ok()) RemoveOrSay(unfinished);
  return made;
}

Result<std::string> RunSnapshot(const SnapshotCommand& command) {
  PENSTOCK_TRY(CheckSnapshotName(command.name));
  PENSTOCK_TRY(ReadRunInfo(command.run).status());
  if (const std::optional<std::string> run = RunOfSnapshot(command.run)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} is a snapshot already; take one of {}, or copy it with penstock export",
                     command.run, *run);
  }
  PENSTOCK_TRY(CheckNotTaken(command.run, command.name));
  std::optional<RunLock> lock;
  Result<RunLock> free = RunLock::TryTake(command.run);
  if (free.ok()) {
    lock = *std::move(free);
  } else if (free.error().code == ErrorCode::kUnavailable) {
    PENSTOCK_ASSIGN(lock, AskTrainer(command));
  } else {
    return free.error();
  }
  if (lock) PENSTOCK_TRY(TakeOfStoppedRun(command));
  PENSTOCK_ASSIGN(const RunInfo kept, ReadRunInfo(SnapshotFolder(command.run, command.name)));
  PENSTOCK_ASSIGN(const std::unique_ptr<StateReader> state, StateReader::Open(kept.state.paths));
  return fmt::format("step {} of {} is kept as {}; go back to it with --resume-from {}\n",
                     state->commit().step, command.run, command.name, command.name);
}

Result<std::string> RunSnapshots(const SnapshotsCommand& command) {
  PENSTOCK_TRY(ReadRunInfo(command.run).status());
  std::string text;
  for (const std::string& name : Snapshots(command.run)) {
    PENSTOCK_ASSIGN(const RunInfo info, ReadRunInfo(SnapshotFolder(command.run, name)));
    const Result<std::unique_ptr<StateReader>> state = StateReader::Open(info.state.paths);
    text += fmt::format(
        "{:<24}{}\n", name,
        state.ok() ? fmt::format("step {}  {}", (*state)->commit().step, info.state.paths.front())
                   : state.error().message);
  }
  return text.empty() ? "no snapshots\n" : text;
}

}  // namespace penstock::train
