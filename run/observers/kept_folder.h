// Keeps RUN once it has results, and looks at each commit whether RUN is still there.
//
// Threads: as of a StepObserver.
#pragma once

#include <functional>
#include <utility>

#include "base/notify.h"
#include "run/observers/step_observer.h"
#include "run/run_folder.h"

namespace penstock::train {

/// Whether the run is whole, as far as that can be seen: a training ends for what is gone, and not
/// for a file system that does not answer for a while, which `notify` is told. Precondition:
/// RunFolder::Watch.
Status CheckThere(const RunFolder& folder, const Notify& notify);

class KeptFolder final : public StepObserver {
 public:
  /// `folder` outlives the object; none: another rank has it. `kept` is called whenever the run is
  /// kept.
  KeptFolder(RunFolder* folder, std::function<void()> kept, Notify notify)
      : folder_(folder), kept_(std::move(kept)), notify_(std::move(notify)) {}

  Status AfterStep(DoneStep& step) override;
  Status AfterCommit() override;
  void AtEnd(const TrainingEnd& end) override;

 private:
  void Keep();

  RunFolder* const folder_;
  const std::function<void()> kept_;
  const Notify notify_;
};

}  // namespace penstock::train
