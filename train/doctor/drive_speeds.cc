#include "train/doctor/drive_speeds.h"

#include <algorithm>
#include <utility>

#include "aio/drive_speed.h"

namespace penstock::train {
namespace {

bool OnOneFileSystem(const DriveFacts& a, const DriveFacts& b) {
  return a.file_system != 0 && a.file_system == b.file_system;
}

bool OnTheSameDisks(const DriveFacts& a, const DriveFacts& b) {
  return !a.disks.empty() && std::ranges::is_permutation(a.disks, b.disks);
}

bool ShareADrive(const DriveFacts& a, const DriveFacts& b) {
  return OnOneFileSystem(a, b) || std::ranges::find_first_of(a.disks, b.disks) != a.disks.end();
}

/// Folders each of which shares a drive with another one of them.
struct DriveGroup {
  std::vector<const DriveFacts*> folders;
  double gbps = 0;
};

/// Adds a folder to the group that it shares a drive with. Groups that it connects become one.
void JoinGroup(const DriveFacts& facts, double gbps, std::vector<DriveGroup>* groups) {
  DriveGroup joined = {.folders = {&facts}, .gbps = gbps};
  std::erase_if(*groups, [&](const DriveGroup& group) {
    const auto shares = [&facts](const DriveFacts* other) { return ShareADrive(facts, *other); };
    if (std::ranges::none_of(group.folders, shares)) return false;
    joined.folders.insert(joined.folders.end(), group.folders.begin(), group.folders.end());
    joined.gbps = std::max(joined.gbps, group.gbps);
    return true;
  });
  groups->push_back(std::move(joined));
}

}  // namespace

const SeenFolder* FindFolder(const SeenFolders& seen, const std::string& folder) {
  const auto found = std::ranges::find(
      seen, folder, [](const SeenFolder& one) -> const auto& { return one.facts.folder; });
  return found == seen.end() ? nullptr : &*found;
}

const SeenFolder* MeasuredOn(const SeenFolders& seen, const DriveFacts& facts) {
  const auto found = std::ranges::find_if(seen, [&facts](const SeenFolder& one) {
    return one.gbps && (OnOneFileSystem(one.facts, facts) || OnTheSameDisks(one.facts, facts));
  });
  return found == seen.end() ? nullptr : &*found;
}

std::string WhyNotMeasured(const DriveFacts& facts, const SeenFolders& seen) {
  if (facts.kind == DriveKind::kMemory) return "it is memory";
  if (const SeenFolder* const same = MeasuredOn(seen, facts)) {
    return "it is the drive of " + same->facts.folder;
  }
  if (facts.space && facts.space->free < aio::kSpaceToMeasure) {
    return "less than " + ToString(aio::kSpaceToMeasure) + " are free";
  }
  return "";
}

std::optional<double> SpeedTogether(const SeenFolders& seen,
                                    const std::vector<std::string>& folders) {
  std::vector<DriveGroup> groups;
  for (const std::string& folder : folders) {
    const SeenFolder* const found = FindFolder(seen, folder);
    const SeenFolder* const measured = found ? MeasuredOn(seen, found->facts) : nullptr;
    if (measured == nullptr) return std::nullopt;
    JoinGroup(found->facts, *measured->gbps, &groups);
  }
  if (groups.empty()) return std::nullopt;
  double sum = 0;
  for (const DriveGroup& group : groups) sum += group.gbps;
  return sum;
}

}  // namespace penstock::train
