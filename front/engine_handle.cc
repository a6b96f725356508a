#include "front/engine_handle.h"

#include <cstdlib>
#include <set>

#include "base/denormals.h"
#include "base/mutex.h"
#include "base/of_process.h"

namespace penstock::front {
namespace {

struct OpenEngines {
  Mutex mutex;
  std::set<penstock_engine*> engines GUARDED_BY(mutex);
};

OpenEngines& Open() { return OfProcess<OpenEngines>::Get(); }

/// Skips an engine that a thread is using: the end of the process stops it there.
void CloseAll() {
  const DefaultArithmetic arithmetic;
  MutexLock lock(Open().mutex);
  for (penstock_engine* const engine : Open().engines) {
    const std::unique_lock<std::mutex> alone(engine->mutex, std::try_to_lock);
    if (!alone) continue;
    engine->training.reset();
    // Runs that are open are closed behind this, or were before it, but for those with an engine.
    if (engine->run != nullptr) LeaveRun(*engine->run, /*close=*/true);
  }
}

}  // namespace

void CloseAtExit(penstock_engine& engine) {
  static const bool registered = std::atexit(CloseAll) == 0;
  static_cast<void>(registered);  // without it, they end as they would have
  MutexLock lock(Open().mutex);
  Open().engines.insert(&engine);
}

void Forget(penstock_engine& engine) {
  MutexLock lock(Open().mutex);
  Open().engines.erase(&engine);
}

}  // namespace penstock::front
