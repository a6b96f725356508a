// Damage to a write that a drive reports as successful: it loses it, flips a bit, leaves a unit
// stale, writes a unit over its neighbour, or cannot read it again. For tests.
//
// A unit is kDamagedUnit of a file. Neighbours beyond the end of a file are not written. Files are
// told apart by device and inode. Threads: those of the drive that owns it, see aio/drive.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "aio/drive.h"
#include "base/mapping.h"

namespace penstock::aio {

/// What befalls a unit of a file.
struct Damage {
  Fault::Kind kind = Fault::Kind::kLost;
  FileOffset unit;  ///< begin of the unit; a multiple of kDamagedUnit
};

/// Whether a fault of this kind is damage that a write does.
bool IsDamage(Fault::Kind kind);
/// Whether the byte at this offset is one of the block's.
bool Holds(const BlockOperation& block, FileOffset offset);
/// Returns the damage that `fault` does with a block: to the unit that it names, or to the last one
/// of the block, if that has fewer.
Damage DamageOf(const Fault& fault, const BlockOperation& block);

class WriteDamage {
 public:
  WriteDamage(int queue_depth, std::function<void(int fd, FileOffset unit)> on_bad_unit);

  /// Changes `write`, whose data stays as it was, so that it does the damage. Its new data is valid
  /// until the next write of its slot. Returns false if nothing is to be written.
  bool Do(const Damage& damage, BlockOperation& write);
  /// Whether a read meets a unit that cannot be read.
  bool IsBad(const BlockOperation& read) const;
  /// What is written can be read again.
  void Heal(const BlockOperation& write);

 private:
  using FileId = std::pair<uint64_t, uint64_t>;  ///< device and inode

  static FileId IdOf(int fd);
  /// The units of a file that a block meets, in part or whole: those from .first up to .second.
  static std::pair<uint64_t, uint64_t> UnitsOf(const BlockOperation& block);

  const std::function<void(int fd, FileOffset unit)> on_bad_unit_;
  std::vector<Mapping> data_;  ///< indexed by slot: the bytes written in place of a block's data
  std::map<FileId, std::set<uint64_t>> bad_;  ///< units, by their numbers
};

}  // namespace penstock::aio
