#include "run/moved_run.h"

#include "run/leftovers.h"
#include "run/run_folder.h"

namespace penstock::train {
namespace {

bool ShareTheirState(const RunInfo& one, const RunInfo& other) {
  return one.state && other.state && one.state->uuid == other.state->uuid &&
         one.state->first() == other.state->first();
}

}  // namespace

bool IsCopy(const Folder& run, const RunInfo& info) {
  if (info.place.empty()) return false;
  const Result<bool> same = run.IsAt(info.place);
  if (same.ok() && *same) return false;
  const Result<RunInfo> there = ReadRunInfo(info.place);
  if (!there.ok()) return there.error().code != ErrorCode::kNotFound;
  return (!info.run_uuid.empty() && there->run_uuid == info.run_uuid) ||
         ShareTheirState(*there, info);
}

void BecomeOwn(const Folder& run, const std::string& run_uuid, RunInfo* info) {
  const Result<RunInfo> original = ReadRunInfo(info->place);
  // One that was begun to be resumed as a copy has its own already.
  if (original.ok() && original->run_uuid != info->run_uuid) return;
  info->run_uuid = run_uuid;
  info->leftovers = FilesWithin(info->leftovers, run);
}

}  // namespace penstock::train
