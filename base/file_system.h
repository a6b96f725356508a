// Tells where the file system of a folder is stored: on a drive of this machine, in memory, or on
// another machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace penstock {

enum class Medium {
  kDrive,    ///< or unknown
  kMemory,   ///< tmpfs, ramfs, or a block device in memory
  kNetwork,  ///< on a server, or by a program (FUSE), which may use one
};

struct FileSystem {
  Medium medium = Medium::kDrive;
  std::string name;  ///< "tmpfs", "nfs", "btrfs"; empty for other kDrive
  /// Each write goes to new blocks, so that reserving space for a file reserves none for writing it
  /// again.
  bool moves_writes = false;
};

/// Returns what statfs calls `type` (f_type).
FileSystem FileSystemOfType(uint64_t type);

/// Looks at the file system that holds a file or folder. Errors: of statfs, with the path.
Result<FileSystem> ReadFileSystem(const std::string& path);

/// Returns the space that is free for this user where `path` is. Errors: of statvfs, with the path.
Result<Bytes> FreeSpace(const std::string& path);

/// Returns the largest sum of files that have room in `paths`, each of which gets as much: paths of
/// one file system share its free space. Nothing if one of them cannot be looked at, or there is
/// none.
std::optional<Bytes> FreeSpaceTogether(const std::vector<std::string>& paths);

/// Returns one line on what a state in `folder` loses by its file system, beginning with `what`
/// ("nvme_path /dev/shm"). The line is empty if the file system is a drive's, or cannot be
/// inspected.
std::string FileSystemNotice(const std::string& what, const std::string& folder);

}  // namespace penstock
