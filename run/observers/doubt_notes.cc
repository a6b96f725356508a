#include "run/observers/doubt_notes.h"

#include "run/doubted_commit.h"

namespace penstock::train {

Status DoubtNotes::AfterStep(DoneStep& step) {
  Note(step.doubted_commit);
  return {};
}

void DoubtNotes::Failing(const Error&, const std::optional<uint64_t>& doubted_commit) {
  Note(doubted_commit);
}

void DoubtNotes::Note(const std::optional<uint64_t>& doubted) {
  if (doubted == noted_) return;
  noted_ = doubted;
  const Status noted = doubted ? NoteDoubt(run_, {state_uuid_, *doubted}) : RemoveDoubt(run_);
  if (!noted.ok()) notify_(noted.error().message);
}

}  // namespace penstock::train
