// Notes in RUN which commit is in doubt, in case the process is killed (run/doubted_commit.h), and
// removes the note.
//
// Threads: as of a StepObserver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/folder.h"
#include "base/notify.h"
#include "run/observers/step_observer.h"

namespace penstock::train {

class DoubtNotes final : public StepObserver {
 public:
  /// `run` outlives the object. A note that cannot be written is reported to `notify`, and the
  /// training continues.
  DoubtNotes(const Folder& run, std::string state_uuid, Notify notify)
      : run_(run), state_uuid_(std::move(state_uuid)), notify_(std::move(notify)) {}

  Status AfterStep(DoneStep& step) override;
  void Failing(const Error& why, const std::optional<uint64_t>& doubted_commit) override;
  void AtEnd(const TrainingEnd& end) override { Note(end.doubted_commit); }
  /// Takes the step of the commit that is in doubt now, if one is.
  void Note(const std::optional<uint64_t>& doubted);

 private:
  const Folder& run_;
  const std::string state_uuid_;
  const Notify notify_;
  std::optional<uint64_t> noted_;  ///< the step of the commit
};

}  // namespace penstock::train
