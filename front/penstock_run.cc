// The functions of the C interface on runs.
#include <memory>
#include <mutex>
#include <new>
#include <string>

#include "front/c_call.h"
#include "front/penstock.h"
#include "run/leftovers.h"
#include "run/run_folder.h"

using namespace penstock;         // NOLINT(google-build-using-namespace): the C names are global
using namespace penstock::front;  // NOLINT(google-build-using-namespace)

int penstock_open_run(const char* options, penstock_run** run) {
  return Guard([&]() -> Status {
    if (options == nullptr) return Missing("the text of options");
    if (run == nullptr) return Missing("the place of the run");
    auto shared = std::make_shared<SharedRun>();
    auto made = std::make_unique<penstock_run>();
    PENSTOCK_ASSIGN(shared->run, TrainingRun::Open(options, PENSTOCK_VERSION));
    CloseAtExit(shared);
    made->shared = std::move(shared);
    *run = made.release();
    return {};
  });
}

int penstock_close_run(penstock_run* run) {
  if (run == nullptr) return PENSTOCK_OK;
  return Guard([&]() -> Status {
    PENSTOCK_TRY(CheckProcess("run", run->shared->process));
    const std::unique_ptr<penstock_run> owned(run);
    Forget(run->shared);
    const std::lock_guard lock(run->shared->mutex);
    return Close(*run->shared);
  });
}

int penstock_describe_run(penstock_run* run, char** json) {
  return WithRun(run, [&](TrainingRun& opened) { return GiveText(opened.Describe(), json); });
}

int penstock_read_run(const char* folder, char** json) {
  return Guard([&]() -> Status {
    if (folder == nullptr) return Missing("the folder");
    PENSTOCK_ASSIGN(const Folder opened, train::OpenRun(folder));
    PENSTOCK_ASSIGN(const train::RunInfo info, train::ReadCommittedInfo(opened));
    return GiveText(DescribeRun(opened, info, {}), json);
  });
}

int penstock_create_in(penstock_run* run, const char* config, const char* model,
                       const char* options, penstock_engine** engine) {
  return WithRun(run, [&](TrainingRun& opened) -> Status {
    if (config == nullptr || model == nullptr || options == nullptr) return Missing("a text");
    if (engine == nullptr) return Missing("the place of the engine");
    auto made = std::make_unique<penstock_engine>();
    PENSTOCK_ASSIGN(made->training, opened.Create(config, model, options));
    made->run = run->shared;
    run->shared->has_engine = true;
    try {
      CloseAtExit(*made);
    } catch (const std::bad_alloc&) {
      made->training.reset();
      run->shared->has_engine = false;
      opened.Left();
      throw;
    }
    *engine = made.release();
    return {};
  });
}

int penstock_snapshot(penstock_engine* engine, const char* name, char** folder) {
  return With(engine, [&](Training& training) -> Status {
    if (name == nullptr) return Missing("the name of the snapshot");
    if (engine->run == nullptr) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "the engine is of no run, so there is no place for a snapshot; make it with "
                       "penstock_create_in, or call penstock_copy_commit");
    }
    const std::lock_guard lock(engine->run->mutex);
    PENSTOCK_ASSIGN(const std::string made, engine->run->run->Snapshot(training, name));
    return GiveText(made, folder);
  });
}
