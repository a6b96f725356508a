#include "train/doctor/drive_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "aio/probe_file.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kLittleSpace = 1_GiB;
constexpr uint64_t kLittleShare = 20;       // a twentieth
constexpr uint64_t kSmallRequestKib = 128;  // an eighth of a block
constexpr uint64_t kFewSegments = 32;

std::string DisksText(const DriveFacts& facts) {
  return facts.disks.empty() ? "" : fmt::format(" ({})", fmt::join(facts.disks, ", "));
}

std::string KindAdvice(DriveKind kind) {
  switch (kind) {
    case DriveKind::kDisk:
      return "it is many times as slow as an NVMe drive; name a folder on one";
    case DriveKind::kLoop:
      return "it is a file of another file system; name a folder on the drive itself";
    case DriveKind::kMemory:
      return "the state takes memory that --host-memory does not count, and a restart of the "
             "machine loses it; name a folder on a drive";
    case DriveKind::kNetwork:
      return "another machine or program decides how fast and how safe it is; name a folder on a "
             "drive of this machine";
    case DriveKind::kOverlay:
      return "these are the container's own layers; mount a volume of the host's drive "
             "(docker run -v /mnt/nvme:/mnt/nvme)";
    default:
      return "";
  }
}

/// A value of the queue of each disk: "max_sectors_kb 1280". The least one goes to `least`.
std::string QueueText(const DriveFacts& facts, const MachineFiles& files, const std::string& name,
                      uint64_t* least) {
  std::vector<std::string> values;
  for (const std::string& disk : facts.disks) {
    const std::string path = fmt::format("sys/class/block/{}/queue/{}", disk, name);
    values.push_back(files.Line(path).value_or("unknown"));
    const std::optional<uint64_t> number = files.Number(path);
    if (number && least != nullptr) *least = std::min(*least, *number);
  }
  return fmt::format("{} {}", name, fmt::join(values, "/"));
}

/// The type of the IOMMU group that a disk's controller is in: that of the nearest device above it
/// that has one.
std::optional<std::string> IommuType(const std::string& disk, const MachineFiles& files) {
  std::error_code error;
  fs::path device = fs::canonical(fs::path(files.root()) / "sys/class/block" / disk, error);
  if (error) return std::nullopt;
  for (; device.has_relative_path() && device != device.parent_path();
       device = device.parent_path()) {
    if (!fs::exists(device / "iommu_group", error)) continue;
    return MachineFiles(device.string()).Line("iommu_group/type");
  }
  return std::nullopt;
}

/// The alignment of a file in the folder with O_DIRECT. The file has no name, and goes.
Result<Bytes> DirectAlignment(const std::string& folder) {
  PENSTOCK_ASSIGN(const aio::ProbeFile file, aio::ProbeFile::Create(folder, 4_KiB, 4_KiB));
  return file.file().alignment();
}

}  // namespace

Check FolderCheck(const DriveFacts& facts) {
  if (facts.trouble.empty()) return OkCheck("folder", facts.folder);
  return FailCheck("folder", facts.folder + " " + facts.trouble,
                   "create it, or name a folder that this user can write to");
}

Check DriveKindCheck(const DriveFacts& facts) {
  std::string found = ToString(facts.kind) + DisksText(facts);
  if ((facts.kind == DriveKind::kMemory || facts.kind == DriveKind::kNetwork) && facts.mount) {
    found += fmt::format(" ({})", facts.mount->type);
  }
  if (facts.kind == DriveKind::kUnknown) {
    return UnknownCheck("drive", found + ": neither the file system nor /sys tells what it is");
  }
  std::string advice = KindAdvice(facts.kind);
  if (advice.empty()) return OkCheck("drive", std::move(found));
  return WarnCheck("drive", std::move(found), std::move(advice));
}

Check FileSystemCheck(const DriveFacts& facts) {
  if (!facts.mount) {
    return UnknownCheck("file system", "unknown: /proc/self/mountinfo does not show it");
  }
  const std::string found = fmt::format("{} ({})", facts.mount->type, facts.mount->options);
  const bool moves = facts.mount->type == "btrfs" || facts.mount->type == "bcachefs";
  if (moves && facts.mount->options.find("nodatacow") == std::string::npos) {
    return WarnCheck("file system", found,
                     "each write goes to a new place and takes a checksum, so that no space is "
                     "reserved for it; chattr +C the empty folder, or use ext4 or xfs");
  }
  if (facts.mount->type == "ecryptfs") {
    return WarnCheck("file system", found, "each block is copied to be encrypted; use ext4 or xfs");
  }
  return OkCheck("file system", found);
}

Check DirectCheck(const Result<Bytes>& alignment) {
  if (alignment.ok()) return OkCheck("O_DIRECT", "works, aligned to " + ToString(*alignment));
  if (alignment.error().code == ErrorCode::kOutOfSpace) {
    return FailCheck("O_DIRECT", "not tried: " + alignment.error().message, "free some space");
  }
  const bool refused = alignment.error().code == ErrorCode::kUnavailable;
  return FailCheck("O_DIRECT", alignment.error().message,
                   refused ? "training needs it; name a folder on ext4 or xfs"
                           : "training opens its files in the same way");
}

Check SpaceCheck(const DriveFacts& facts) {
  if (!facts.space) return UnknownCheck("space", "unknown: the file system does not say");
  const Space& space = *facts.space;
  const std::string inodes =
      space.inodes == 0 ? "no fixed number of inodes"
                        : fmt::format("{} of {} inodes free", space.free_inodes, space.inodes);
  const std::string found =
      fmt::format("{} of {} free, {}", ToString(space.free), ToString(space.total), inodes);
  if (space.free == 0_B || (space.inodes > 0 && space.free_inodes == 0)) {
    return FailCheck("space", found, "remove files: penstock clean removes a run with its state");
  }
  if (space.free < kLittleSpace || space.free.value < space.total.value / kLittleShare) {
    return WarnCheck("space", found,
                     "a state has 24 bytes a parameter (12 with \"durable\": false), and drives "
                     "slow down when they are full");
  }
  return OkCheck("space", found);
}

Check QueueCheck(const DriveFacts& facts, const MachineFiles& files) {
  if (facts.disks.empty()) {
    return facts.kind == DriveKind::kUnknown || facts.kind == DriveKind::kOverlay
               ? UnknownCheck("drive queue", "unknown: /sys does not show the drive")
               : OkCheck("drive queue", "none");
  }
  uint64_t sectors = kMaxCount, segments = kMaxCount;
  std::string found = QueueText(facts, files, "max_sectors_kb", &sectors);
  for (const std::string& more : {QueueText(facts, files, "max_segments", &segments),
                                  QueueText(facts, files, "rotational", nullptr),
                                  QueueText(facts, files, "scheduler", nullptr),
                                  QueueText(facts, files, "nr_requests", nullptr)}) {
    found += ", " + more;
  }
  if (sectors == kMaxCount && segments == kMaxCount) return UnknownCheck("drive queue", found);
  if (sectors < kSmallRequestKib) {
    return WarnCheck("drive queue", found,
                     fmt::format("a block of 1 MiB becomes {} requests; write the drive's "
                                 "max_hw_sectors_kb into max_sectors_kb",
                                 (1024 + sectors - 1) / std::max<uint64_t>(sectors, 1)));
  }
  if (segments < kFewSegments) {
    return WarnCheck("drive queue", found,
                     "a request takes few pieces of memory; smaller aio.block_size, or huge pages");
  }
  return OkCheck("drive queue", found);
}

Check IommuCheck(const DriveFacts& facts, const MachineFiles& files) {
  if (!files.Exists("sys/kernel/iommu_groups")) {
    return UnknownCheck("IOMMU", "unknown: /sys/kernel/iommu_groups is not there");
  }
  if (files.Names("sys/kernel/iommu_groups").empty()) return OkCheck("IOMMU", "off");
  std::vector<std::string> modes;
  bool strict = false;
  for (const std::string& disk : facts.disks) {
    const std::optional<std::string> type = IommuType(disk, files);
    modes.push_back(fmt::format("{} {}", disk, type.value_or("in no group")));
    strict = strict || type == "DMA";
  }
  if (modes.empty()) return OkCheck("IOMMU", "on, and no drive of this machine is used");
  const std::string found = fmt::format("{}", fmt::join(modes, ", "));
  if (!strict) return OkCheck("IOMMU", found);
  return WarnCheck(
      "IOMMU", found,
      "every transfer waits until its mapping is flushed; boot with iommu.strict=0, or "
      "iommu=pt where the machine is trusted");
}

Checks DriveChecks(const DriveFacts& facts, const MachineFiles& files) {
  return {
      DriveKindCheck(facts), FileSystemCheck(facts),   DirectCheck(DirectAlignment(facts.folder)),
      SpaceCheck(facts),     QueueCheck(facts, files), IommuCheck(facts, files)};
}

}  // namespace penstock::train
