#include "base/file_system.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "base/topology.h"
#include "base/unique_fd.h"

namespace penstock {
namespace {

struct KnownType {
  uint64_t type;  ///< f_type of statfs(2); <linux/magic.h> has most of them
  Medium medium;
  const char* name;
};
constexpr std::array<KnownType, 18> kKnown = {{
    {0x01021994, Medium::kMemory, "tmpfs"},
    {0x858458f6, Medium::kMemory, "ramfs"},
    {0x958458f6, Medium::kMemory, "hugetlbfs"},
    {0x6969, Medium::kNetwork, "nfs"},
    {0xff534d42, Medium::kNetwork, "cifs"},
    {0xfe534d42, Medium::kNetwork, "smb2"},
    {0x517b, Medium::kNetwork, "smb"},
    {0x65735546, Medium::kNetwork, "fuse"},
    {0x01021997, Medium::kNetwork, "9p"},
    {0x00c36400, Medium::kNetwork, "ceph"},
    {0x5346414f, Medium::kNetwork, "afs"},
    {0x0bd00bd0, Medium::kNetwork, "lustre"},
    {0x47504653, Medium::kNetwork, "gpfs"},
    {0x19830326, Medium::kNetwork, "beegfs"},
    {0x01161970, Medium::kNetwork, "gfs2"},
    {0x7461636f, Medium::kNetwork, "ocfs2"},
    {0x9123683e, Medium::kDrive, "btrfs"},
    {0xca451a4e, Medium::kDrive, "bcachefs"},
}};

bool IsInMemory(const std::string& device) {
  return device.starts_with("zram") || device.starts_with("ram");
}

/// Whether files created in a folder are nevertheless written in place (chattr +C).
bool IsWrittenInPlace(const std::string& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  int flags = 0;
  return fd.valid() && ::ioctl(fd.get(), FS_IOC_GETFLAGS, &flags) == 0 &&
         (flags & FS_NOCOW_FL) != 0;
}

}  // namespace

FileSystem FileSystemOfType(uint64_t type) {
  for (const KnownType& known : kKnown) {
    if (known.type == type) return {known.medium, known.name, known.medium == Medium::kDrive};
  }
  return {};
}

Result<FileSystem> ReadFileSystem(const std::string& path) {
  struct statfs stat = {};
  if (::statfs(path.c_str(), &stat) != 0) {
    return ErrnoError(errno, "looking at the file system of " + path);
  }
  // The type is signed on some machines, and has 32 bits.
  FileSystem known = FileSystemOfType(static_cast<uint32_t>(stat.f_type));
  if (known.medium != Medium::kDrive) return known;
  const std::vector<std::string> devices = BlockDevicesOf(path);
  if (!devices.empty() && std::ranges::all_of(devices, IsInMemory)) {
    return FileSystem{Medium::kMemory, devices.front()};
  }
  known.moves_writes = known.moves_writes && !IsWrittenInPlace(path);
  return known;
}

Result<Bytes> FreeSpace(const std::string& path) {
  struct statvfs drive {};
  if (::statvfs(path.c_str(), &drive) != 0) return ErrnoError(errno, "looking at " + path);
  return Bytes{drive.f_frsize} * drive.f_bavail;
}

std::optional<Bytes> FreeSpaceTogether(const std::vector<std::string>& paths) {
  std::vector<dev_t> systems;
  for (const std::string& path : paths) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) return {};
    systems.push_back(info.st_dev);
  }
  std::optional<Bytes> together;
  for (size_t i = 0; i < paths.size(); ++i) {
    const Result<Bytes> free = FreeSpace(paths[i]);
    if (!free.ok()) return {};
    const auto sharing = static_cast<uint64_t>(std::ranges::count(systems, systems[i]));
    const Bytes of_all = Bytes{free->value / sharing} * paths.size();
    together = std::min(together.value_or(of_all), of_all);
  }
  return together;
}

std::string FileSystemNotice(const std::string& what, const std::string& folder) {
  const Result<FileSystem> found = ReadFileSystem(folder);
  if (!found.ok()) return "";
  if (found->moves_writes) {
    return fmt::format(
        "{} is on {}, where each write goes to new blocks: no space is reserved for the state's "
        "writes, and a drive that others fill ends the run; chattr +C an empty folder, or use ext4 "
        "or xfs",
        what, found->name);
  }
  if (found->medium == Medium::kDrive) return "";
  if (found->medium == Medium::kMemory) {
    return fmt::format(
        "{} is on {}, which is memory: what is written there takes memory that --host-memory does "
        "not count, and a restart of the machine loses it",
        what, found->name);
  }
  return fmt::format(
      "{} is on {}, which another machine or program serves: that one decides how fast it is, and "
      "what of it a power failure leaves",
      what, found->name);
}

}  // namespace penstock
