#include "run/automatic_snapshots.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "run/snapshot.h"

namespace penstock::train {
namespace {

constexpr std::string_view kAutomaticPrefix = "auto-";

/// The run's automatic snapshots, by number, the oldest first.
std::vector<std::pair<uint64_t, std::string>> AutomaticSnapshots(const Folder& run,
                                                                 const std::string& run_uuid) {
  std::vector<std::pair<uint64_t, std::string>> found;
  for (const std::string& name : Snapshots(run)) {
    const Result<Folder> folder = OpenSnapshot(run, name);
    if (!folder.ok()) continue;
    const Result<RunInfo> info = ReadRunInfo(*folder);
    if (!info.ok() || !info->automatic || info->run_uuid != run_uuid) continue;
    found.emplace_back(*info->automatic, name);
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

std::string AutomaticSnapshotName(uint64_t step) {
  return fmt::format("{}{}", kAutomaticPrefix, step);
}

bool IsAutomaticSnapshotName(const std::string& name) {
  return name.starts_with(kAutomaticPrefix) && name.size() > kAutomaticPrefix.size() &&
         std::all_of(name.begin() + kAutomaticPrefix.size(), name.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

Status TakeAutomaticSnapshot(const Folder& run, const RunInfo& info,
                             const offload::WholeState& state, uint64_t keep,
                             const std::function<bool()>& stop_requested, const Notify& notify) {
  const std::string name = AutomaticSnapshotName(state.commit().head.step);
  auto before = AutomaticSnapshots(run, info.run_uuid);
  RunInfo numbered = info;
  numbered.automatic = before.empty() ? 1 : before.back().first + 1;
  const auto same = std::ranges::find(before, name, &std::pair<uint64_t, std::string>::second);
  if (same != before.end()) {
    PENSTOCK_TRY(RemoveSnapshot(run, name, info.run_uuid));
    before.erase(same);
  }
  PENSTOCK_TRY(TakeSnapshot(run, numbered, state, name, stop_requested, notify));
  Status removed;
  for (size_t i = 0; before.size() - i >= keep; ++i) {
    const std::string& old = before[i].second;
    const Status status = RemoveSnapshot(run, old, info.run_uuid);
    if (status.ok() || !removed.ok()) continue;
    removed = MakeError(status.error().code, "{} is kept, and {}, which is too many, stays: {}",
                        name, old, status.error().message);
  }
  return removed;
}

}  // namespace penstock::train
