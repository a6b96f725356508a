// What a folder's files lie on: its file system, the drives below, and what their queues take.
//
// Read from the folder itself and from the files that describe the machine; nothing is written.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "train/doctor/machine_files.h"

namespace penstock::train {

enum class DriveKind {
  kNvme,
  kSsd,
  kDisk,     ///< that rotates
  kVirtual,  ///< of a virtual machine: its host decides what it is
  kLoop,     ///< a file of another file system
  kMemory,
  kNetwork,  ///< of a server, or of a program (FUSE)
  kOverlay,  ///< a container's layers
  kUnknown,
};
const char* ToString(DriveKind kind);

/// A line of /proc/self/mountinfo (proc(5)).
struct Mount {
  std::string type;     ///< "ext4"
  std::string source;   ///< "/dev/nvme0n1p2"
  std::string options;  ///< "rw,relatime,discard"
};
/// Returns the mount that a path without links lies in; nothing if the file does not show it.
std::optional<Mount> MountOf(const std::string& path, const MachineFiles& files);

struct Space {
  Bytes free;  ///< to this user
  Bytes total;
  uint64_t free_inodes = 0;
  uint64_t inodes = 0;  ///< 0: the file system has no fixed number
};

struct DriveFacts {
  std::string folder;        ///< as it was given
  std::string trouble;       ///< why it is no folder to write to; empty: it is one
  uint64_t file_system = 0;  ///< folders with the same number lie on the same one
  DriveKind kind = DriveKind::kUnknown;
  std::optional<Mount> mount;
  std::vector<std::string> disks;  ///< "nvme0n1"; empty: none, or not known
  std::optional<Space> space;
};

DriveFacts ReadDriveFacts(const std::string& folder, const MachineFiles& files);

}  // namespace penstock::train
