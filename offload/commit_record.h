// The bytes of a commit record (docs/state_format.md): what training was when it was committed.
//
// Pure encoding and decoding: no file is touched here. Decoding trusts nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "offload/checksum.h"

namespace penstock::offload {

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

/// No run comes near so many steps, commits or versions; what is added to one does not overflow.
inline constexpr uint64_t kMostSteps = uint64_t{1} << 48;

/// The size of a record of so many tiles and so much JSON text.
Bytes CommitBytes(size_t tiles, Bytes json);

std::vector<std::byte> EncodeCommit(const Uuid& uuid, const CommitRecord& record);
/// kNotFound for a place that never held a commit (zeros), kCorruption for one that does not hold.
/// EncodeCommit gives the bytes of what decodes again.
Result<CommitRecord> DecodeCommit(const Uuid& uuid, std::span<const std::byte> bytes);

}  // namespace penstock::offload
