#include "front/snapshot_answers.h"

#include <utility>

#include "run/snapshot_request.h"

namespace penstock::front {

void SnapshotAnswers::Answer(const train::RunInfo& info, const zero::Session& session) {
  if (service_ && service_->copying()) return;
  const std::vector<std::string> names = train::RequestedSnapshots(run_);
  if (names.empty()) return;
  const std::optional<uint64_t> committed = session.committed_step();
  if (!committed || !info.state) return Refuse(info, names);
  // With one slot, the first update writes over what was committed.
  const bool gone = !durable_ && *committed != session.state().step;
  if (gone || session.commit_is_doubtful()) return;
  if (!service_) {
    service_.emplace(
        run_, info, durable_, /*keep=*/0, [] { return false; },
        [this](const std::string& line) {
          MutexLock lock(mutex_);
          notices_.push_back(line);
        });
  }
  static_cast<void>(service_->AfterCommit());  // which reports its failures itself
}

void SnapshotAnswers::Refuse(const train::RunInfo& info,
                             const std::vector<std::string>& names) const {
  const Error why =
      MakeError(ErrorCode::kNotFound,
                "nothing is committed yet in {}, and the program that trains it makes its commits; "
                "ask again after its first one",
                run_.path());
  for (const std::string& name : names) train::AnswerRequest(run_, info.run_uuid, name, why);
}

std::vector<std::string> SnapshotAnswers::TakeNotices() {
  MutexLock lock(mutex_);
  return std::exchange(notices_, {});
}

}  // namespace penstock::front
