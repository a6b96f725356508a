// The bytes of a state file's head: header, layout and descriptors (docs/state_format.md).
//
// Pure encoding and decoding, without files. Decoding validates everything: an invalid field is
// kCorruption, naming the field; a file that was never finished is kNotFound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "offload/checksum.h"
#include "offload/commit_record.h"
#include "offload/layout.h"

namespace penstock::offload {

/// The newest version; a state that version 1 can express has version 1.
inline constexpr uint32_t kStateFormatVersion = 2;
inline constexpr Bytes kHeaderBytes = 4_KiB;
inline constexpr Bytes kStateAlignment = 4_KiB;  ///< alignment of every region
inline constexpr Bytes kDescriptorBytes = 64_B;

inline constexpr uint32_t kMaxPaths = 64;
inline constexpr uint32_t kMaxRanks = 65536;
inline constexpr uint32_t kMaxGroups = 65536;
inline constexpr uint64_t kMaxTiles = uint64_t{1} << 24;  ///< descriptors of 1 GiB
/// The most elements of a state, padding included, so that no size or offset comes near 2^64.
inline constexpr uint64_t kMaxElements = uint64_t{1} << 48;
/// The limit of the JSON text of modules and tensors.
inline constexpr Bytes kMaxLayoutBytes = 128_MiB;

/// The places of everything in one path's file.
struct StateGeometry {
  int slots = 2;
  bool guards = true;  ///< see StateShape
  FileOffset layout_offset;
  Bytes layout_bytes;
  FileOffset descriptors_offset;
  Bytes descriptors_bytes;
  FileOffset commit_offset[2];
  Bytes commit_bytes;
  Bytes commit_json;  ///< max bytes of a commit's JSON text
  FileOffset weights_offset[2];
  FileOffset records_offset[2];
  FileOffset frozen_offset;
  Bytes frozen_bytes;
  Bytes file_bytes;  ///< file size in the header, without the second head

  /// Everything before commit place 0, and as much behind file_bytes.
  Bytes head_bytes() const { return Bytes{commit_offset[0].value}; }
  FileOffset second_head() const { return FileOffset{file_bytes.value}; }
  /// Returns the size of a file with both heads.
  Bytes whole_bytes() const { return file_bytes + head_bytes(); }
};

/// The place of a tile: the path, and its parts' offsets within a slot of that path's file. The
/// weight of a frozen tile is in the frozen weights, in slot 0 only.
struct TilePlace {
  uint16_t path = 0;
  bool frozen = false;
  Bytes weight;
  Bytes record;

  bool operator==(const TilePlace&) const = default;
};

/// Returns the share of the bytes of all tiles that lies on each of the paths.
std::vector<double> PathShares(const ShardLayout& layout, const std::vector<TilePlace>& tiles,
                               size_t paths);

/// `geometry` is that of the tile's path.
FileOffset PartOffset(const StateGeometry& geometry, const TilePlace& place, Part part, int slot);

/// The head of one path's file. ShardLayout and tiles are the same in all files of a state.
struct StateHeader {
  Uuid uuid{};
  uint32_t paths = 1;
  uint32_t path = 0;
  StateGeometry geometry;
  ShardLayout layout;
  std::vector<TilePlace> tiles;  ///< place of each tile
};

/// The properties of a state beside its layout.
struct StateShape {
  int slots = 2;  ///< 1 or 2
  /// Whether kStateAlignment unused bytes follow each commit place and each slot, so that a block
  /// that a drive misplaces by one damages no other commit. States from before guards have none.
  bool guards = true;
  Bytes commit_json = kCommitJsonLimit;  ///< a multiple of 4096; in version 1 this value
  uint32_t paths = 1;
  std::vector<uint16_t> path_of_tile;  ///< path of each tile; empty with one path
};

/// Returns the version of the format that a state with this layout has.
uint32_t FormatVersionOf(const ShardLayout& layout);

/// Returns the header of one path of a new state.
StateHeader PlanState(const Uuid& uuid, const ShardLayout& layout, const StateShape& shape,
                      uint32_t path);

/// Returns the header of another path of the state that `header` is of.
StateHeader HeaderOfPath(const StateHeader& header, uint32_t path);

/// Returns the size of all files of a new state, whose tiles take turns at the paths.
Bytes StateFileBytes(const ShardLayout& layout, int slots, size_t paths);

/// Returns everything before commit place 0: header, layout text and descriptors.
std::vector<std::byte> EncodeHead(const StateHeader& header);
/// Returns the second head of a file whose first one is `head`: its header comes last.
std::vector<std::byte> SecondHead(std::vector<std::byte> head);
/// The inverse.
std::vector<std::byte> FirstHead(std::vector<std::byte> second);
/// Returns the mark that takes the place of the header until the state is finished.
std::vector<std::byte> EncodeUnfinishedMark(const Uuid& uuid);
/// Returns how long the head is, from the header alone; `bytes` holds at least kHeaderBytes.
Result<Bytes> HeadBytes(std::span<const std::byte> bytes);
/// Returns whose file it is, from the header alone or the mark in its place; `bytes` holds at least
/// kHeaderBytes.
Result<Uuid> UuidOf(std::span<const std::byte> bytes);
/// Accepts only what PlanState makes of the layout: names are unique, nothing overlaps, no size
/// overflows, and EncodeHead gives the same bytes again, except for bytes that no checksum covers.
Result<StateHeader> DecodeHead(std::span<const std::byte> bytes);

}  // namespace penstock::offload
