// A run that a front end trains: begun or resumed, locked, and written in the order of
// docs/run_format.md. Nothing exists that its run.json does not name.
//
// Front ends other than penstock train use it (front/training_run.h). They decide what a commit
// holds and how a state is moved.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/folder.h"
#include "base/folder_watch.h"
#include "base/result.h"
#include "run/run_info.h"
#include "run/run_lock.h"

namespace penstock::train {

/// Which run is to be opened.
struct RunRequest {
  std::optional<std::string> folder;    ///< none: a temporary run in the first of `nvme_paths`
  std::vector<std::string> nvme_paths;  ///< existing folders
  RunKind kind = RunKind::kOptimizer;
  std::string program;  ///< version of the calling program
};

class HeldRun {
 public:
  /// Begins the run or opens it, removes what a killed process left, and writes all that is known
  /// into run.json. Errors: kNotFound for a folder of `nvme_paths` that is not there, and for a run
  /// whose folder was lost and whose state is in one of them; kInvalidArgument for a run of another
  /// kind, and for a folder that has states and is no run; kUnavailable for a run that is open; of
  /// ReadRunInfo; of writing.
  static Result<HeldRun> Open(const RunRequest& request);
  HeldRun(HeldRun&& other) noexcept = default;
  HeldRun& operator=(HeldRun&& other) = delete;
  /// Ends the lock alone; see Close.
  ~HeldRun() = default;

  const Folder& folder() const { return folder_; }
  const std::string& path() const { return folder_.path(); }
  const RunInfo& info() const { return info_; }
  /// Where the files of a new state go, one folder for each path.
  const std::vector<std::string>& state_folders() const { return state_folders_; }
  /// The folders of the newest commit's files, if the run may resume in place: they are the run's
  /// own, lie in its folders for states, and have no other name (a hard link). Otherwise the state
  /// must be moved.
  std::optional<std::vector<std::string>> OwnFolders() const;
  void AddNotice(const std::string& notice) { notices_.push_back(notice); }
  /// Notices for the user; each is returned once.
  std::vector<std::string> TakeNotices() { return std::exchange(notices_, {}); }

  /// Names a state before its files are made.
  Status Announce(const StateFiles& state);
  /// Names the state that has the newest commit, and removes the one that it replaces. After an
  /// error nothing is removed until a later call succeeds; Close tries once more. `rows_from`: see
  /// RunInfo, if the state is new.
  Status NoteCommit(const StateFiles& state, const std::optional<std::string>& rows_from = {});
  /// Notes that metrics.jsonl holds the rows of RunInfo::rows_from.
  Status NoteRowsTaken();
  /// Says beside a state with a commit whose it is, where the run's folder is gone and NoteCommit
  /// can do nothing: then the next start there does not begin anew without a word.
  void NoteLost(const StateFiles& state) const;
  /// Removes the files of states without a commit. What cannot be removed stays named, as does a
  /// state of an earlier process that may hold the first commit on a drive that is not there.
  Status RemoveLeftovers();

  /// Names the path to which a snapshot is being copied, or none any more, so that the next start
  /// removes what a kill leaves there. If run.json cannot be written, that is not known then.
  void NoteCopying(const std::optional<std::string>& path);

  /// Returns a watch of the folder and of the run.json written last.
  Result<FolderWatch> Watch() const { return FolderWatch::Begin(folder_, {kInfoName}); }
  /// Names files of rows and curves before they are made (run/made_files.h), which go with a run
  /// that ends without a commit. One that has a commit keeps them.
  Status NoteMadeFiles(const std::vector<std::string>& files);
  /// Removes these files, if the run has no commit.
  Status RemoveMadeFiles();
  /// Counts writes of run.json, also those that may have failed: a watch belongs to one of them.
  uint64_t writes() const { return writes_; }

  /// Names a commit that NoteCommit was not told of, removes states without a commit, and the run
  /// if it has no commit, and ends the lock. If the folder is gone, or run.json may be out of date,
  /// or a state cannot be asked for its commit, everything stays. To be called once, when nothing
  /// has the state open.
  Status Close();

 private:
  HeldRun(Folder folder, RunLock lock) : folder_(std::move(folder)), lock_(std::move(lock)) {}
  static Result<HeldRun> OpenAt(const RunRequest& request, const std::string& path);
  Status Begin(const RunRequest& request);
  Status Resume(const RunRequest& request, RunInfo info);
  Status Write(RunInfo info);
  void NoteOwnerOf(const StateFiles& state);
  Status NoteLastCommit();
  bool StateIsThere() const;
  bool MayBeAway(const StateFiles& state) const;
  bool IsWhole() const;
  void RemoveUnfinishedCopy();
  Status RemoveRun();
  void RemoveBegun();
  static void RemoveAbandoned(const std::string& root);

  Folder folder_;
  std::shared_ptr<const FileId> mark_;  ///< marks that this process has the folder open
  RunLock lock_;
  RunInfo info_;
  std::vector<std::string> state_folders_;
  std::vector<std::string> places_;    ///< its places so far, from files beside its states
  std::set<std::string> announced_;    ///< states that this process has named
  bool made_ = false;                  ///< this process made the folder
  bool is_copy_ = false;               ///< info_.state is another run's, and may be read only
  bool unsure_ = false;                ///< run.json may hold info_ or its replacement
  std::optional<StateFiles> unnoted_;  ///< holds the newest commit; run.json may not name it
  std::optional<std::string> rows_of_unnoted_;  ///< its RunInfo::rows_from
  std::optional<FolderWatch> watch_;
  uint64_t writes_ = 0;
  std::vector<std::string> notices_;
};

}  // namespace penstock::train
