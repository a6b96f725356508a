#include "run/observers/kept_folder.h"

#include <fmt/format.h>

namespace penstock::train {

Status CheckThere(const RunFolder& folder, const Notify& notify) {
  Status whole = folder.CheckWhole();
  if (whole.ok() || whole.error().code == ErrorCode::kNotFound) return whole;
  notify(
      fmt::format("cannot check whether {} is intact: {}", folder.path(), whole.error().message));
  return {};
}

void KeptFolder::Keep() {
  if (folder_ != nullptr) folder_->Keep();
  kept_();
}

Status KeptFolder::AfterStep(DoneStep&) {
  Keep();
  return {};
}

Status KeptFolder::AfterCommit() {
  if (folder_ != nullptr) PENSTOCK_TRY(CheckThere(*folder_, notify_));
  Keep();
  if (folder_ == nullptr || !unnamed_) return {};
  PENSTOCK_TRY(folder_->NameFirstCommit(*unnamed_, notify_));
  unnamed_.reset();
  return {};
}

void KeptFolder::AtEnd(const TrainingEnd& end) {
  if (end.begun) Keep();
}

}  // namespace penstock::train
