// The session: commits, and when one may be made or is taken back.
#include "zero/session.h"

namespace penstock::zero {

Status Session::BeginCommit(std::string run_json, std::function<Status()> first) {
  PENSTOCK_TRY(failure_);
  PENSTOCK_TRY(CheckFilled());
  if (open_ || life_.pending()) {
    return MakeError(ErrorCode::kInvalidArgument, "a commit was begun {}; finish that first",
                     open_ ? "within a step" : "while another one is being made");
  }
  if (life_.doubtful()) {
    return MakeError(
        ErrorCode::kNumeric,
        "no loss after the commit of step {} was finite, and another commit would take "
        "the place of the last one that is good; compute a step whose loss is finite "
        "first, or go on from that commit",
        *life_.newest());
  }
  if (life_.unproven()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "no loss was computed since the commit of step {}, and another commit would "
                     "take the place of the one before; compute a step first",
                     *life_.newest());
  }
  TrainState state = state_;
  state.run_json = std::move(run_json);
  life_.Begin(state.step, proven_ || adopted_);
  engine_.BeginCommit(state, std::move(first));
  return {};
}

Status Session::FinishCommit() {
  if (!life_.pending()) return {};
  Status made = engine_.FinishCommit();
  if (made.ok()) {
    life_.MadeDurable();
  } else {
    life_.Failed();
    if (failure_.ok()) failure_ = made;
  }
  return made;
}

Status Session::Commit(std::string run_json) {
  PENSTOCK_TRY(BeginCommit(std::move(run_json)));
  return FinishCommit();
}

Status Session::CheckCommit() const {
  if (!life_.pending()) return engine_.CheckCommit();
  return MakeError(ErrorCode::kInvalidArgument,
                   "a commit was looked at while another one is being made; finish that first");
}

Result<std::optional<uint64_t>> Session::TakeBackDoubtfulCommit() {
  if (open_) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "a commit was taken back within a step; finish or drop the step first");
  }
  PENSTOCK_TRY(FinishCommit());
  // With one slot there is none before: the first update gives a commit up.
  if (!life_.retractable() || !config_.durable) return std::optional<uint64_t>();
  const std::optional<uint64_t> step = life_.newest();
  PENSTOCK_TRY(engine_.TakeBackCommit());
  const Status before = engine_.CheckCommit();
  life_.Retract(before.ok() || before.error().code != ErrorCode::kNotFound);
  if (failure_.ok()) {
    failure_ = MakeError(ErrorCode::kNumeric,
                         "the commit of step {} was taken back, as no loss after it was finite; "
                         "begin from the commit before it",
                         *step);
  }
  return step;
}

}  // namespace penstock::zero
