// The bytes of a commit record (docs/state_format.md): the state of training when it was committed.
//
// Pure encoding and decoding, without files. Decoding validates everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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

/// Identifies the state that a record belongs to. A UUID alone means a state of version 1.
struct StateIdentity {
  Uuid uuid{};
  uint32_t version = 1;  ///< version of the format
  uint32_t world_size = 1;
  uint32_t rank = 0;

  // NOLINTNEXTLINE(google-explicit-constructor): most states are of version 1
  StateIdentity(const Uuid& of_state) : uuid(of_state) {}
  StateIdentity(const Uuid& of_state, const ShardLayout& layout);
};

/// What the loss scale of fp16 has come to (zero/session/loss_scale.h).
struct LossScaleState {
  double scale = 1;  ///< scale of the next step
  uint64_t steps_without_overflow = 0;
  uint32_t hysteresis = 1;  ///< at 1 the next overflow halves the scale

  bool operator==(const LossScaleState&) const = default;
};

/// The counts of a training when it was committed.
struct CommitHead {
  uint64_t step = 0;             ///< steps done, skipped ones included
  uint64_t optimizer_steps = 0;  ///< updates applied: the rule's t and the scheduler's count
  uint64_t skipped_in_a_row = 0;
  uint64_t seed = 0;
  uint32_t compute_threads = 0;
  std::optional<LossScaleState> loss_scale;  ///< only with fp16, whose states have version 2

  bool operator==(const CommitHead&) const = default;
};

struct CommitRecord {
  uint64_t sequence = 0;
  CommitHead head;
  uint64_t session = 0;  ///< the same on all ranks of a run; from version 2 on
  std::vector<CommittedTile> tiles;
  std::string json;
};

/// The largest JSON text that a commit place of version 1 holds, and the least room of version 2.
inline constexpr Bytes kCommitJsonLimit = 64_KiB;
inline constexpr Bytes kMaxCommitJson = 64_MiB;

/// A bound that no run comes near, for steps, commits and versions. Adding to such a number does
/// not overflow.
inline constexpr uint64_t kMaxSteps = uint64_t{1} << 48;

/// Returns the size of a record with this many tiles and bytes of JSON text.
Bytes CommitBytes(uint32_t version, size_t tiles, Bytes json);

std::vector<std::byte> EncodeCommit(const StateIdentity& state, const CommitRecord& record);
/// Errors: kNotFound for a place that never held a commit (zeros), kCorruption for an invalid one.
/// EncodeCommit of the result gives the same bytes again.
Result<CommitRecord> DecodeCommit(const StateIdentity& state, std::span<const std::byte> bytes);

}  // namespace penstock::offload
