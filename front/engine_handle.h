// What a penstock_engine of the C interface is, and what becomes of those that nobody closes.
//
// Threads of an engine must not outlive what they use, and at the end of a process that goes piece
// by piece. So engines that are still open are closed when it begins, as penstock_close does.
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
  std::shared_ptr<penstock::front::SharedRun> run;  ///< none: its files are the caller's to keep
  const pid_t process = ::getpid();
  std::mutex mutex;  ///< which can be tried, unlike ours
};

namespace penstock::front {

/// Has the engine closed at the end of the process, unless Forget is called before.
void CloseAtExit(penstock_engine& engine);
void Forget(penstock_engine& engine);

}  // namespace penstock::front
