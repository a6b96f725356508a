#include "tools/snapshot_commands.h"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <thread>

#include "base/long_work.h"
#include "offload/uuid.h"
#include "offload/whole_commit.h"
#include "offload/whole_state.h"
#include "run/committed_run.h"
#include "run/leftovers.h"
#include "run/moved_run.h"
#include "run/run_folder.h"
#include "run/run_lock.h"
#include "run/snapshot.h"
#include "run/snapshot_request.h"
#include "train/process/interrupt.h"
#include "train/process/log.h"
#include "train/process/watched_read.h"
#include "train/weights/committed_model.h"

namespace penstock::train {
namespace {

using offload::WholeState;

constexpr auto kAskAgain = std::chrono::milliseconds(50);

/// The state of a run that agrees with its run.json.
Result<WholeState> OpenToCopy(const RunInfo& info, const std::string& run) {
  PENSTOCK_TRY(CommittedFiles(info, run).status());
  PENSTOCK_ASSIGN(WholeState state, OpenCommitToCopy(info, offload::StateLock::kShared));
  PENSTOCK_TRY(CheckInfo(info, state));
  return state;
}

/// A caller's steps may be far apart, so that somebody may wonder whether anything happens.
void SayWhoIsAsked(const RunInfo& info, const std::string& path) {
  if (info.kind == RunKind::kTrain) return;
  LogNotice(fmt::format(
      "asking the program that trains {}, which answers at the end of its next step; interrupt to "
      "withdraw the request",
      path));
}

/// Asks the process that trains the run, and waits for its answer, or until the run can be had:
/// then its lock.
Result<std::optional<RunLock>> AskTrainer(const Folder& run, const RunInfo& info,
                                          const std::string& name) {
  PENSTOCK_ASSIGN(const SnapshotRequest request, SnapshotRequest::Make(run, info.run_uuid, name));
  SayWhoIsAsked(info, run.path());
  const Interrupt interrupt("penstock: withdrawing the request; interrupt again to quit at once");
  while (!request.answered()) {
    Result<RunLock> lock = RunLock::TryTake(run);
    const bool in_use = !lock.ok() && lock.error().code == ErrorCode::kUnavailable;
    if (!in_use || interrupt.requested()) request.TakeBack();
    // The training ended without having seen the request.
    if (lock.ok()) return std::optional(*std::move(lock));
    // Whether it still trains is not known any more, and an answer may never come.
    if (!in_use) return lock.error();
    if (interrupt.requested()) {
      return MakeError(ErrorCode::kCancelled,
                       "interrupted: the request is withdrawn, unless the copy had begun");
    }
    std::this_thread::sleep_for(kAskAgain);
  }
  PENSTOCK_TRY(request.Answer());
  return std::optional<RunLock>();
}

/// A snapshot, or why it is none.
std::string Describe(const Folder& folder) {
  const Result<RunInfo> info = ReadRunInfo(folder);
  if (!info.ok()) return info.error().message;
  const Result<WholeState> state = OpenToCopy(*info, folder.path());
  if (!state.ok()) return state.error().message;
  return fmt::format("step {}  {}", state.value().commit().head.step, info->state->first());
}

/// Has an older run of the package know its snapshots by a UUID, as runs do now.
Status BringUpToDate(const Folder& run, RunInfo* info) {
  if (!info->run_uuid.empty()) return {};
  PENSTOCK_ASSIGN(const offload::Uuid uuid, offload::RandomUuid());
  info->run_uuid = offload::ToString(uuid);
  info->format = RunFormat::kCurrent;
  return WriteRunInfo(run, *info);
}

/// Without a training: the lock is ours.
Status TakeOfStoppedRun(const Folder& run, const std::string& name) {
  PENSTOCK_ASSIGN(RunInfo info, ReadCommittedInfo(run));
  PENSTOCK_ASSIGN(WholeState state, OpenToCopy(info, run.path()));
  PENSTOCK_TRY(BringUpToDate(run, &info));
  if (!state.notice().empty()) LogNotice(state.notice());
  const Interrupt interrupt("penstock: removing what was copied; interrupt again to quit at once");
  uint64_t tiles = 0;
  for (uint32_t rank = 0; rank < state.world_size(); ++rank) {
    tiles += state.rank(rank).layout().tiles.size();
  }
  const auto take = [&] {
    LongWork work("copying the commit of " + run.path(), LogNotice);
    const auto before_tile = [&, done = uint64_t{0}]() mutable {
      work.Note(static_cast<double>(done++), static_cast<double>(tiles));
      return interrupt.requested();
    };
    return TakeSnapshot(run, info, state, name, before_tile, LogNotice);
  };
  Status taken = take();
  if (!offload::MayUseOther(taken, state.commits())) return taken;
  PENSTOCK_ASSIGN(
      const std::string left,
      offload::UseWholeCommit(state, WatchedRead("verifying the commit of " + run.path(), interrupt,
                                                 "interrupted: nothing is copied")));
  if (left.empty()) return taken;
  LogNotice(left);
  return take();
}

}  // namespace

Result<std::string> RunSnapshot(const std::string& path, const std::string& name) {
  PENSTOCK_TRY(CheckNewSnapshotName(name));
  PENSTOCK_ASSIGN(const Folder run, OpenRun(path));
  PENSTOCK_ASSIGN(const RunInfo info, ReadRunInfo(run));
  if (const std::optional<std::string> whole = RunOfSnapshot(run)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} is a snapshot already; take one of {}, or copy it with penstock export",
                     path, *whole);
  }
  if (const std::optional<std::string> original = OriginalOf(run, info)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} is a copy of {}, which is still there, and has no state of its own yet; "
                     "resume it, which gives it one, or take a snapshot of {}",
                     path, *original, *original);
  }
  PENSTOCK_TRY(CheckSnapshotNotTaken(run, name));
  std::optional<RunLock> lock;
  Result<RunLock> free = RunLock::TryTake(run);
  if (free.ok()) {
    lock = *std::move(free);
  } else if (free.error().code == ErrorCode::kUnavailable) {
    PENSTOCK_ASSIGN(lock, AskTrainer(run, info, name));
  } else {
    return free.error();
  }
  if (lock) PENSTOCK_TRY(TakeOfStoppedRun(run, name));
  PENSTOCK_ASSIGN(const Folder folder, OpenSnapshot(run, name));
  PENSTOCK_ASSIGN(const RunInfo kept, ReadRunInfo(folder));
  PENSTOCK_ASSIGN(const WholeState state, OpenToCopy(kept, folder.path()));
  const std::string how =
      info.kind == RunKind::kTrain
          ? "resume from it with --resume-from " + name
          : fmt::format("a state_dict whose [\"penstock\"][\"snapshot\"] is \"{}\" resumes from it",
                        folder.path());
  return fmt::format("step {} of {} is kept as {}; {}\n", state.commit().head.step, path, name,
                     how);
}

Result<std::string> RunSnapshots(const std::string& path) {
  PENSTOCK_ASSIGN(const Folder run, OpenRun(path));
  PENSTOCK_TRY(ReadRunInfo(run).status());
  std::string text;
  for (const std::string& name : Snapshots(run)) {
    PENSTOCK_ASSIGN(const Folder folder, OpenSnapshot(run, name));
    text += fmt::format("{:<24}{}\n", name, Describe(folder));
  }
  return text.empty() ? "no snapshots\n" : text;
}

}  // namespace penstock::train
