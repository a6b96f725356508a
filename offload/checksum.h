// Checksums of a tile's parts, bound to the file, the tile and the version (docs/state_format.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "offload/layout.h"
#include "offload/planes.h"
#include "offload/uuid.h"

namespace penstock::offload {

/// What a tile has a checksum of, each by itself.
enum class Part : uint8_t { kWeight, kRecord };

/// XXH3-64 of `bytes`, unseeded: for headers and records.
uint64_t Checksum(std::span<const std::byte> bytes);

/// The same, of bytes that come in pieces. Not thread-safe.
class StreamHasher {
 public:
  StreamHasher();
  ~StreamHasher();
  StreamHasher(const StreamHasher&) = delete;
  StreamHasher& operator=(const StreamHasher&) = delete;

  void Add(std::span<const std::byte> bytes);
  uint64_t Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns the seed of the checksums of one version of one tile.
uint64_t TileSeed(const Uuid& uuid, const ShardLayout& layout, TileId tile, uint64_t version);

/// The checksums of one version of one tile.
struct TileChecksums {
  uint64_t weight = 0;
  uint64_t record = 0;

  bool operator==(const TileChecksums&) const = default;
};

/// Hashes a tile in pieces, so that a piece can be hashed while it is in cache. Not thread-safe;
/// reusable through Reset.
class TileHasher {
 public:
  TileHasher();
  TileHasher(TileHasher&&) noexcept;
  ~TileHasher();

  /// Begins a tile with these planes (borrowed) and so many elements.
  void Reset(uint64_t seed, const Planes& planes, uint64_t elements);
  /// Adds the blocks with elements [begin, begin + count) of the tile that has these parts. Pieces
  /// come in order and end on blocks. Padding after a plane's last block is hashed with that block.
  void Add(std::span<const std::byte> weight, std::span<const std::byte> record, uint64_t begin,
           uint64_t count);
  TileChecksums Finish() const;

 private:
  struct States;
  std::unique_ptr<States> states_;
};

/// Hashes one part of a tile in pieces of any size, as they are read. Not thread-safe; reusable
/// through Reset.
class PartHasher {
 public:
  PartHasher();
  ~PartHasher();

  /// Begins a part of a tile with these planes and so many elements.
  void Reset(uint64_t seed, Part part, const Planes& planes, uint64_t elements);
  /// Adds the next bytes of the part. No more come than the part has.
  void Add(std::span<const std::byte> bytes);
  /// Returns the part's checksum. Precondition: all of its bytes were added.
  uint64_t Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Hash whole parts at once.
uint64_t WeightChecksum(uint64_t seed, std::span<const std::byte> weight);
uint64_t RecordChecksum(uint64_t seed, const ShardLayout& layout, TileId tile,
                        std::span<const std::byte> record);
/// Hashes both parts of one version of a tile.
TileChecksums ChecksumsOf(const Uuid& uuid, const ShardLayout& layout, TileId tile,
                          uint64_t version, std::span<const std::byte> weight,
                          std::span<const std::byte> record);

/// Whether an error says that what a drive holds is damaged or cannot be read, and not that this
/// program could not look.
inline bool IsReadDamage(const Error& error) {
  return error.code == ErrorCode::kCorruption || error.code == ErrorCode::kIo;
}

/// Returns the error, kCorruption, of a part in a version of a tile that was read at `place` ("PATH
/// at offset N") and does not have its checksum.
Error DamagedPart(const ShardLayout& layout, Part part, TileId tile, uint64_t version,
                  const std::string& place);
/// The same of a part that lives in host memory.
Error DamagedInMemory(const ShardLayout& layout, Part part, TileId tile, uint64_t version);

}  // namespace penstock::offload
