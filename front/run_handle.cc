#include "front/run_handle.h"

#include <cstdlib>
#include <exception>
#include <set>

#include "base/mutex.h"
#include "base/of_process.h"

namespace penstock::front {
namespace {

struct OpenRuns {
  Mutex mutex;
  std::set<std::shared_ptr<SharedRun>> runs GUARDED_BY(mutex);
};

OpenRuns& Open() { return OfProcess<OpenRuns>::Get(); }

/// Closes a run where nobody can be told of a failure, nor an exception go on: the next start
/// removes what is left then.
void CloseQuietly(SharedRun& shared) {
  try {
    static_cast<void>(Close(shared));
  } catch (const std::exception&) {  // out of memory, in a library
    return;
  }
}

/// Skips a run whose engine a thread is using.
void CloseAll() {
  MutexLock lock(Open().mutex);
  for (const std::shared_ptr<SharedRun>& shared : Open().runs) {
    const std::unique_lock<std::mutex> alone(shared->mutex, std::try_to_lock);
    if (alone && !shared->has_engine) CloseQuietly(*shared);
  }
}

}  // namespace

Status Close(SharedRun& shared) {
  if (shared.run == nullptr) return {};
  shared.ends_with_engine = shared.has_engine;
  if (shared.has_engine) return {};
  const std::unique_ptr<TrainingRun> run = std::move(shared.run);
  return run->Close();
}

void LeaveRun(SharedRun& shared, bool close) {
  const std::lock_guard lock(shared.mutex);
  shared.has_engine = false;
  if (shared.run == nullptr) return;
  shared.run->Left();
  if (close || shared.ends_with_engine) CloseQuietly(shared);
}

void CloseAtExit(const std::shared_ptr<SharedRun>& shared) {
  static const bool registered = std::atexit(CloseAll) == 0;
  static_cast<void>(registered);  // without it, the next start removes what they leave
  MutexLock lock(Open().mutex);
  Open().runs.insert(shared);
}

void Forget(const std::shared_ptr<SharedRun>& shared) {
  MutexLock lock(Open().mutex);
  Open().runs.erase(shared);
}

}  // namespace penstock::front
