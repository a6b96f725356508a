// The program's interface to the ranks of a training. The calls are the same for one rank, which
// opens no socket and starts no thread.
//
// Only rank 0 writes RUN and reports for all. A failure of any rank ends all: a failing rank sends
// the reason (Tell), and the others then end on the job's thread, with a line that names the rank,
// regardless of their main thread. The failing rank also ends without destructors (End), which
// would wait for the others.
//
// Threads: the main thread, except for SetCleanup's function, and Committed.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/activity.h"
#include "base/mutex.h"
#include "base/result.h"
#include "comm/communicator.h"
#include "comm/job.h"
#include "device/device.h"
#include "train/plan/node_share.h"
#include "train/trainer/alike.h"
#include "train/trainer/trainer_job.h"
#include "zero/step_note.h"

namespace penstock::train {

/// Looks up a variable of this process, for Ranks::Join.
std::optional<std::string> ReadEnvironment(const std::string& name);

class Ranks {
 public:
  /// Finds the other ranks (comm::Job::Join). Errors: of Join.
  static Result<std::unique_ptr<Ranks>> Join(const comm::Environment& environment);

  const comm::World& world() const { return job_->world(); }
  bool alone() const { return world().size == 1; }
  bool first() const { return world().rank == 0; }
  comm::Job& job() { return *job_; }
  RankPlace place() const { return {.world = world(), .share = share_}; }

  /// Returns the failure of the lowest rank that has one, on all ranks.
  Status Agree(const Status& mine) { return alone() ? mine : job_->Agree(mine); }
  /// The same for a value that each rank has.
  template <typename T>
  Result<T> Agree(Result<T> mine) {
    const Status agreed = Agree(mine.status());
    if (!agreed.ok()) return agreed.error();
    return mine;
  }
  /// Returns rank 0's value.
  Result<std::string> FromFirst(std::string text);
  /// Compares values that must be the same on all ranks. Errors: kInvalidArgument, naming the key,
  /// the lowest rank that differs from rank 0, and both values.
  Status CheckAlike(const NamedValues& mine);
  /// Sends all ranks a note.
  Result<std::vector<zero::StepNote>> ExchangeNotes(const zero::StepNote& note);

  /// Makes the communicator of the device; none if this is the only rank. Errors: of the back end.
  Result<std::unique_ptr<comm::Communicator>> CreateCommunicator(device::Device& device,
                                                                 ActivityMeter* meter);

  /// Sets a function that is called before the process ends because of another rank; it must be
  /// short and may be called from any thread.
  void SetCleanup(std::function<void()> cleanup) EXCLUDES(mutex_);
  /// While one lives, files are made that the cleanup removes: it waits for them. If the cleanup
  /// has begun already, the constructor waits for the end of the process.
  class [[nodiscard]] MakingFiles {
   public:
    explicit MakingFiles(Ranks& ranks);
    ~MakingFiles();
    MakingFiles(const MakingFiles&) = delete;
    MakingFiles& operator=(const MakingFiles&) = delete;

   private:
    Ranks& ranks_;
  };
  /// Returns a function that tells the others what this rank does (comm::Job::Doing); none for a
  /// single rank.
  std::function<void(std::string_view what)> doing();
  /// The same for comm::Job::Progressed.
  std::function<void()> progressed();
  /// Sets where this rank leaves a report if the job fails (run/rank_reports.h): the path of RUN,
  /// which this host need not see, and its UUID.
  void ReportTo(std::string run, std::string run_uuid) EXCLUDES(mutex_);
  /// Notes that all ranks hold the commit of a step, which is now permanent. Threads: any.
  void Committed(uint64_t step) EXCLUDES(mutex_);
  /// Sends the reason of this rank's failure to the others, which end within a second. To be called
  /// before this rank waits for anything, or releases anything that they may wait for. A numeric
  /// failure (kNumeric) is sent only by End: all ranks find it, and each takes back its commit
  /// first.
  void Tell(const Error& why) EXCLUDES(mutex_);
  /// Ends the process for a failure that the others may not have: tells them, waits for rank 0's
  /// verdict and reports the failure, or that of another rank that caused it. Returns for a single
  /// rank, or if all ranks have agreed on the failure.
  void End(const Error& why) EXCLUDES(mutex_);
  /// Returns `mine`, if it is no failure or if End returns.
  template <typename T>
  T OrEnd(T mine) {
    if (!mine.ok()) End(mine.error());
    return mine;
  }
  /// Waits until all ranks are done.
  Status Finish();

 private:
  Ranks() = default;
  void OnVerdict(const Error& verdict, const std::string& report) EXCLUDES(mutex_);
  void AwaitFiles() REQUIRES(mutex_);
  void CleanUp() REQUIRES(mutex_);
  /// The text of a verdict on this rank: with the newest commit.
  Error Said(Error verdict) const REQUIRES(mutex_);
  void LeaveReport(const Error& verdict, const std::string& report) const REQUIRES(mutex_);

  NodeShare share_;
  Mutex mutex_;
  CondVar judged_;
  CondVar files_made_;
  std::function<void()> cleanup_ GUARDED_BY(mutex_);
  bool making_files_ GUARDED_BY(mutex_) = false;
  std::string run_ GUARDED_BY(mutex_);  ///< path of RUN for reports; empty: none
  std::string run_uuid_ GUARDED_BY(mutex_);
  std::optional<uint64_t> committed_ GUARDED_BY(mutex_);
  bool failing_ GUARDED_BY(mutex_) = false;          ///< the main thread will call End
  std::optional<Error> verdict_ GUARDED_BY(mutex_);  ///< verdict after failing_
  std::unique_ptr<comm::Job> job_;                   ///< last: its thread calls OnVerdict
};

}  // namespace penstock::train
