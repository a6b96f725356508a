// The penstock_run of the C interface. Runs that the caller never closes are closed when the
// process begins to end, after their engines.
//
// Threads: any.
#pragma once

#include <unistd.h>

#include <memory>
#include <mutex>

#include "base/result.h"
#include "front/training_run.h"

namespace penstock::front {

/// A run, which its engine uses as well, and the lock that lets one call at a time use it. A call
/// on the engine takes the engine's lock first.
struct SharedRun {
  std::unique_ptr<TrainingRun> run;  ///< none: it was closed
  bool ends_with_engine = false;     ///< it was closed before its engine
  bool has_engine = false;
  const pid_t process = ::getpid();
  std::mutex mutex;  ///< has try_lock, unlike Mutex
};

/// Closes the run, or leaves that to the end of its engine. Precondition: the mutex is held.
Status Close(SharedRun& shared);
/// Says that the run's engine has ended. `close`: closes the run with it, as the process ends.
void LeaveRun(SharedRun& shared, bool close);

/// Has the run closed at the end of the process, unless Forget is called before.
void CloseAtExit(const std::shared_ptr<SharedRun>& shared);
void Forget(const std::shared_ptr<SharedRun>& shared);

}  // namespace penstock::front

struct penstock_run {
  std::shared_ptr<penstock::front::SharedRun> shared;
};
