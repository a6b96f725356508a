#include "front/engine_handle.h"

#include <cstdlib>
#include <memory>
#include <set>
#include <vector>

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

/// Ends what the open engines train, and returns their runs. Skips an engine that a thread is
/// using: the end of the process stops it there.
std::vector<std::shared_ptr<SharedRun>> EndTrainings() {
  std::vector<std::shared_ptr<SharedRun>> runs;
  MutexLock lock(Open().mutex);
  for (penstock_engine* const engine : Open().engines) {
    const std::unique_lock<std::mutex> alone(engine->mutex, std::try_to_lock);
    if (!alone) continue;
    engine->training.reset();
    if (engine->run != nullptr) runs.push_back(engine->run);
  }
  return runs;
}

/// Runs that are open are closed behind this, or were before it, but for those with an engine. The
/// lock of a run is taken before that of the list, so not within it.
void CloseAll() {
  const DefaultArithmetic arithmetic;
  for (const std::shared_ptr<SharedRun>& run : EndTrainings()) LeaveRun(*run, /*close=*/true);
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

Status NoteCommit(penstock_engine& engine) {
  if (engine.run == nullptr) return {};
  const std::lock_guard lock(engine.run->mutex);
  return engine.run->run->NoteCommit(*engine.training);
}

void AnswerRequests(penstock_engine& engine) {
  if (engine.run == nullptr) return;
  const std::lock_guard lock(engine.run->mutex);
  engine.run->run->AnswerRequests(*engine.training);
}

Status FinishCommit(penstock_engine& engine) {
  const bool pending = engine.training->life().commits().pending();
  PENSTOCK_TRY(engine.training->FinishCommit());
  PENSTOCK_TRY(NoteCommit(engine));
  if (pending) AnswerRequests(engine);
  return {};
}

}  // namespace penstock::front
