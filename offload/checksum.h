// Checksums of a tile's parts, bound to the file, the tile and the version (docs/state_format.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "offload/layout.h"

namespace penstock::offload {

using Uuid = std::array<uint8_t, 16>;

/// XXH3-64 of `bytes`, unseeded: for headers and records.
uint64_t Checksum(std::span<const std::byte> bytes);

/// What seeds the checksums of one version of one tile.
uint64_t TileSeed(const Uuid& uuid, TileId tile, uint64_t version);

/// The checksums of one version of one tile.
struct TileChecksums {
  uint64_t weight = 0;
  uint64_t record = 0;

  bool operator==(const TileChecksums&) const = default;
};

/// Takes the tiles of a layout in pieces, so that a piece can be hashed while it is in cache. Not
/// thread-safe; reusable through Reset.
class TileHasher {
 public:
  explicit TileHasher(const Layout& layout);
  TileHasher(TileHasher&&) noexcept;
  ~TileHasher();

  void Reset(uint64_t seed);
  /// Elements [begin, begin + count) of a tile whose parts are these; pieces come in order.
  void Add(std::span<const std::byte> weight, std::span<const std::byte> record, uint64_t begin,
           uint64_t count);
  TileChecksums Finish() const;

 private:
  struct States;
  std::unique_ptr<States> states_;
};

/// Whole parts at once.
uint64_t WeightChecksum(uint64_t seed, std::span<const std::byte> weight);
uint64_t RecordChecksum(uint64_t seed, const Layout& layout, std::span<const std::byte> record);

}  // namespace penstock::offload
