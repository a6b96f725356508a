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

/// Takes a tile's bytes in pieces, each state in order, so that the pieces can be hashed while they
/// are in cache. Not thread-safe; reusable through Reset.
class TileHasher {
 public:
  /// `record_states`: 3 for bf16 training (lo, exp_avg, exp_avg_sq), 2 for fp32.
  explicit TileHasher(size_t record_states);
  TileHasher(TileHasher&&) noexcept;
  ~TileHasher();

  void Reset(uint64_t seed);
  void AddWeight(std::span<const std::byte> bytes);
  void AddState(size_t state, std::span<const std::byte> bytes);
  TileChecksums Finish() const;

 private:
  struct States;
  std::unique_ptr<States> states_;
};

/// Whole parts at once. `record` is the states of equal element counts, one after the other.
uint64_t WeightChecksum(uint64_t seed, std::span<const std::byte> weight);
uint64_t RecordChecksum(uint64_t seed, DType dtype, uint64_t elements,
                        std::span<const std::byte> record);

/// The states of a record: their sizes in bytes, in order (bf16: lo, exp_avg, exp_avg_sq).
std::span<const Bytes> RecordStates(DType dtype);

}  // namespace penstock::offload
