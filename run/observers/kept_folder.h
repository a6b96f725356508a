// Keeps RUN once it has results, checks at each commit that RUN still exists, and names the state
// in run.json once the first commit is durable.
//
// Threads: as of a StepObserver.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "base/notify.h"
#include "run/observers/step_observer.h"
#include "run/run_folder.h"
#include "run/run_info.h"

namespace penstock::train {

/// Whether the run is intact: a training ends if it is gone, but not if a file system does not
/// answer for a while, which is reported to `notify`. Precondition: RunFolder::Watch.
Status CheckThere(const RunFolder& folder, const Notify& notify);

class KeptFolder final : public StepObserver {
 public:
  /// `folder` outlives the object; none: another rank has it. `unnamed`: the run.json of a run
  /// whose first commit is still to come. `kept` is called whenever the run is kept.
  KeptFolder(RunFolder* folder, std::optional<RunInfo> unnamed, std::function<void()> kept,
             Notify notify)
      : folder_(folder),
        unnamed_(std::move(unnamed)),
        kept_(std::move(kept)),
        notify_(std::move(notify)) {}

  Status AfterStep(DoneStep& step) override;
  Status AfterCommit() override;
  void AtEnd(const TrainingEnd& end) override;

 private:
  void Keep();

  RunFolder* const folder_;
  std::optional<RunInfo> unnamed_;
  const std::function<void()> kept_;
  const Notify notify_;
};

}  // namespace penstock::train
