// The session: commits.
#include "zero/session/session.h"

#include <utility>

namespace penstock::zero {

Status Session::BeginCommit(std::string run_json, std::function<Status()> first,
                            std::string caller_file) {
  PENSTOCK_TRY(life_.CheckCommit());
  no_room_ = false;
  if (!caller_file.empty()) {
    first = [this, then = std::move(first), content = std::move(caller_file)]() -> Status {
      const Status written = states_.WriteCallerFile(content);
      no_room_ = !written.ok() && written.error().code == ErrorCode::kOutOfSpace;
      return written.ok() ? then() : written;
    };
  }
  const TrainState state{life_.BeginCommit(), std::move(run_json)};
  states_.BeginCommit(state, std::move(first));
  return {};
}

Status Session::FinishCommit(const std::function<Status()>& stands) {
  if (!life_.commits().pending()) return {};
  Status made = states_.FinishCommit();
  if (made.ok() && stands) made = stands();
  if (no_room_) {
    life_.DropCommit();
  } else {
    life_.EndCommit(made);
  }
  return made;
}

Status Session::Commit(std::string run_json, std::string caller_file) {
  PENSTOCK_TRY(BeginCommit(
      std::move(run_json), [] { return Status(); }, std::move(caller_file)));
  return FinishCommit();
}

Status Session::CheckCommit() const {
  if (!life_.commits().pending()) return states_.CheckCommit();
  return MakeError(ErrorCode::kInvalidArgument,
                   "a commit was looked at while another one is being made; finish that first");
}

Result<std::optional<uint64_t>> Session::TakeBackDoubtfulCommit() {
  PENSTOCK_TRY(life_.CheckRetract());
  PENSTOCK_TRY(FinishCommit());
  // With one slot there is none before: the first update gives a commit up.
  if (!life_.retractable()) return std::optional<uint64_t>();
  const std::optional<uint64_t> step = life_.commits().newest();
  PENSTOCK_TRY(states_.TakeBackCommit());
  const Status before = states_.CheckCommit();
  life_.Retract(before.ok() || before.error().code != ErrorCode::kNotFound);
  return step;
}

}  // namespace penstock::zero
