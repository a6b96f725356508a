// The bytes of the state file's header, descriptors and commit records (docs/state_format.md).
//
// Pure encoding and decoding: no file is touched here. Decoding trusts nothing: whatever does not
// hold is kCorruption, naming the field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "offload/checksum.h"
#include "offload/layout.h"

namespace penstock::offload {

inline constexpr uint32_t kStateFormatVersion = 1;
inline constexpr Bytes kHeaderBytes = 4_KiB;
inline constexpr Bytes kDescriptorBytes = 64_B;

/// Where everything lies; a function of the layout, the alignment and the number of slots.
struct StateGeometry {
  Bytes alignment;
  int slots = 2;
  FileOffset layout_offset;
  Bytes layout_bytes;
  FileOffset descriptors_offset;
  Bytes descriptors_bytes;
  FileOffset commit_offset[2];
  Bytes commit_bytes;
  FileOffset weights_offset[2];
  FileOffset records_offset[2];
  Bytes file_bytes;
};

/// Offsets of a tile's parts within a slot.
struct TileOffsets {
  Bytes weight;
  Bytes record;
};

struct StateHeader {
  Uuid uuid{};
  StateGeometry geometry;
  Layout layout;
  std::vector<TileOffsets> tiles;  ///< of each tile
};

/// The header of a new file. Alignment: a multiple of 4096. slots: 1 or 2.
StateHeader PlanState(const Uuid& uuid, const Layout& layout, Bytes alignment, int slots);

/// Everything before commit place 0: header, layout text and descriptors.
std::vector<std::byte> EncodeHead(const StateHeader& header);
/// The header alone says how long the head is; `bytes` holds at least kHeaderBytes.
Result<Bytes> HeadBytes(std::span<const std::byte> bytes);
/// Whose file it is, from the header alone.
Result<Uuid> UuidOf(std::span<const std::byte> bytes);
Result<StateHeader> DecodeHead(std::span<const std::byte> bytes);

/// One tile as a commit names it.
struct CommittedTile {
  uint64_t version = 0;
  TileChecksums checksums;
  uint32_t slot = 0;
};

struct CommitRecord {
  uint64_t sequence = 0;
  uint64_t step = 0;
  uint64_t optimizer_steps = 0;
  uint64_t skipped_in_a_row = 0;
  uint64_t seed = 0;
  uint32_t compute_threads = 0;
  std::vector<CommittedTile> tiles;
  std::string json;
};

/// The largest JSON text that a commit place holds.
inline constexpr Bytes kCommitJsonLimit = 64_KiB;

std::vector<std::byte> EncodeCommit(const Uuid& uuid, const CommitRecord& record);
/// kNotFound for a place that never held a commit (zeros), kCorruption for one that does not hold.
Result<CommitRecord> DecodeCommit(const Uuid& uuid, std::span<const std::byte> bytes);

}  // namespace penstock::offload
