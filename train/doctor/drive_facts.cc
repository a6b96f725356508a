#include "train/doctor/drive_facts.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/file_system.h"
#include "base/topology.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 4> kMemoryTypes = {"tmpfs", "ramfs", "hugetlbfs", "rootfs"};
constexpr std::array<std::string_view, 16> kNetworkTypes = {
    "nfs",  "nfs4", "cifs", "smb3",  "9p",     "virtiofs", "ceph",      "lustre",
    "gpfs", "afs",  "gfs2", "ocfs2", "beegfs", "fuse",     "glusterfs", "orangefs"};
constexpr std::array<std::string_view, 3> kOverlayTypes = {"overlay", "aufs", "fuse-overlayfs"};

bool Has(const auto& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

/// Spaces and backslashes stand as \040 and \134 there.
std::string Unescaped(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escaped = text[i] == '\\' && i + 3 < text.size() &&
                         std::all_of(text.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                     text.begin() + static_cast<std::ptrdiff_t>(i) + 4,
                                     [](char c) { return c >= '0' && c <= '7'; });
    if (!escaped) {
      plain += text[i];
      continue;
    }
    plain +=
        static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + text[i + 3] - '0');
    i += 3;
  }
  return plain;
}

bool LiesIn(const std::string& path, const std::string& folder) {
  if (folder == "/") return true;
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

DriveKind KindOfDisk(const std::string& disk, const MachineFiles& files) {
  if (disk.starts_with("nvme")) return DriveKind::kNvme;
  if (disk.starts_with("zram") || disk.starts_with("ram")) return DriveKind::kMemory;
  if (disk.starts_with("loop")) return DriveKind::kLoop;
  // Such a drive's "rotational" is a default that says nothing.
  if (disk.starts_with("vd") || disk.starts_with("xvd")) return DriveKind::kVirtual;
  const auto rotational = files.Number("sys/class/block/" + disk + "/queue/rotational");
  if (!rotational) return DriveKind::kUnknown;
  return *rotational == 0 ? DriveKind::kSsd : DriveKind::kDisk;
}

/// What the slowest of the disks is: later kinds are worse.
DriveKind KindOfDisks(const std::vector<std::string>& disks, const MachineFiles& files) {
  if (disks.empty()) return DriveKind::kUnknown;
  DriveKind worst = DriveKind::kNvme;
  for (const std::string& disk : disks) worst = std::max(worst, KindOfDisk(disk, files));
  return worst;
}

DriveKind KindOf(const DriveFacts& facts, const MachineFiles& files) {
  if (facts.mount) {
    const std::string& type = facts.mount->type;
    if (Has(kMemoryTypes, type)) return DriveKind::kMemory;
    if (Has(kOverlayTypes, type) || type == "fuse.fuse-overlayfs") return DriveKind::kOverlay;
    // A block device with a file system of a program is local, but the program serves it.
    if (Has(kNetworkTypes, type) || type.starts_with("fuse.")) return DriveKind::kNetwork;
  } else if (const Result<FileSystem> found = ReadFileSystem(facts.folder); found.ok()) {
    if (found->medium == Medium::kMemory) return DriveKind::kMemory;
    if (found->medium == Medium::kNetwork) return DriveKind::kNetwork;
  }
  return KindOfDisks(facts.disks, files);
}

/// File systems with devices of their own (btrfs) name the drive as what is mounted.
std::vector<std::string> DisksOf(const DriveFacts& facts, const MachineFiles& files) {
  std::vector<std::string> disks = BlockDevicesOf(facts.folder, files.root());
  if (!disks.empty() || !facts.mount || !facts.mount->source.starts_with("/dev/")) return disks;
  std::string name = fs::path(facts.mount->source).filename().string();
  if (!files.Exists("sys/class/block/" + name)) return disks;
  if (files.Exists("sys/class/block/" + name + "/partition")) {
    std::error_code error;
    const fs::path device = fs::canonical(fs::path(files.root()) / "sys/class/block" / name, error);
    if (!error) name = device.parent_path().filename().string();
  }
  return {name};
}

std::string TroubleOf(const std::string& folder, struct stat* info) {
  if (::stat(folder.c_str(), info) != 0) {
    return errno == ENOENT ? "does not exist" : "cannot be looked at: " + ErrnoText(errno);
  }
  if (!S_ISDIR(info->st_mode)) return "is no folder";
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) == 0) return "";
  return "cannot be written to by this user: " + ErrnoText(errno);
}

std::optional<Space> SpaceOf(const std::string& folder) {
  struct statvfs stat {};
  if (::statvfs(folder.c_str(), &stat) != 0) return std::nullopt;
  return Space{.free = Bytes{stat.f_bavail} * stat.f_frsize,
               .total = Bytes{stat.f_blocks} * stat.f_frsize,
               .free_inodes = stat.f_favail,
               .inodes = stat.f_files};
}

}  // namespace

const char* ToString(DriveKind kind) {
  switch (kind) {
    case DriveKind::kNvme:
      return "nvme";
    case DriveKind::kSsd:
      return "ssd";
    case DriveKind::kDisk:
      return "disk";
    case DriveKind::kVirtual:
      return "virtual drive";
    case DriveKind::kLoop:
      return "loop device";
    case DriveKind::kMemory:
      return "memory";
    case DriveKind::kNetwork:
      return "network";
    case DriveKind::kOverlay:
      return "overlay";
    case DriveKind::kUnknown:
      return "unknown";
  }
  return "unknown";
}

std::optional<Mount> MountOf(const std::string& path, const MachineFiles& files) {
  std::istringstream lines(files.Text("proc/self/mountinfo").value_or(""));
  std::optional<Mount> found;
  size_t longest = 0;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string id, parent, device, group, folder, options, word;
    words >> id >> parent >> device >> group >> folder >> options;
    while (words >> word && word != "-") continue;
    Mount mount;
    std::string more;
    if (!(words >> mount.type >> mount.source >> more)) continue;
    folder = Unescaped(folder);
    // Of two mounts at one place, the later one is seen.
    if (!LiesIn(path, folder) || folder.size() < longest) continue;
    longest = folder.size();
    mount.options = options.append(",").append(more);
    found = std::move(mount);
  }
  return found;
}

DriveFacts ReadDriveFacts(const std::string& folder, const MachineFiles& files) {
  DriveFacts facts{.folder = folder};
  struct stat info {};
  facts.trouble = TroubleOf(folder, &info);
  if (info.st_nlink == 0 || !S_ISDIR(info.st_mode)) return facts;
  facts.file_system = info.st_dev;
  std::error_code error;
  const fs::path path = fs::canonical(folder, error);
  if (!error) facts.mount = MountOf(path.string(), files);
  facts.disks = DisksOf(facts, files);
  facts.kind = KindOf(facts, files);
  facts.space = SpaceOf(folder);
  return facts;
}

}  // namespace penstock::train
