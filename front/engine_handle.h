// The penstock_engine of the C interface, and the end of engines that the caller never closes.
//
// Threads of an engine must not outlive the objects that they use, which the end of a process
// destroys one by one. So open engines are closed when it begins, as by penstock_close.
//
// Threads: any.
#pragma once

#include <unistd.h>

#include <memory>
#include <mutex>

#include "front/run_handle.h"
#include "front/training.h"

/// A training, the process that made it, and the lock that lets one call at a time use it.
struct penstock_engine {
  std::unique_ptr<penstock::front::Training> training;  ///< none: the process ends
  std::shared_ptr<penstock::front::SharedRun> run;      ///< none: the caller keeps the files
  const pid_t process = ::getpid();
  std::mutex mutex;  ///< has try_lock, unlike Mutex
};

namespace penstock::front {

/// Has the engine closed at the end of the process, unless Forget is called before.
void CloseAtExit(penstock_engine& engine);
void Forget(penstock_engine& engine);

// With the engine's mutex held; for an engine of no run, there is nothing to name or to answer.
/// Has the run name the newest commit.
Status NoteCommit(penstock_engine& engine);
/// Takes the snapshots that the run was asked for.
void AnswerRequests(penstock_engine& engine);
/// Waits for the commit that was begun, if any, and does both.
Status FinishCommit(penstock_engine& engine);

}  // namespace penstock::front
