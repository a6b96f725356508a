#include "offload/commit_record.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>

#include "offload/byte_fields.h"
#include "offload/layout_text.h"
#include "offload/state_format.h"

namespace penstock::offload {
namespace {

constexpr std::array<char, 8> kCommitMagic = {'P', 'S', 'C', 'O', 'M', 'M', 'I', 'T'};
constexpr size_t FixedBytes(uint32_t version) { return version == 1 ? 96 : 256; }
constexpr size_t kCommitTileBytes = 32;

/// Offset of the loss scale in version 2; zeros without one.
constexpr size_t kLossScaleAt = 112;

void PutLossScale(std::span<std::byte> out, const std::optional<LossScaleState>& scale) {
  if (!scale) return;
  Put<double>(out, kLossScaleAt, scale->scale);
  Put<uint64_t>(out, kLossScaleAt + 8, scale->steps_without_overflow);
  Put<uint32_t>(out, kLossScaleAt + 16, scale->hysteresis);
}

std::optional<LossScaleState> GetLossScale(std::span<const std::byte> bytes) {
  const auto scale = Get<double>(bytes, kLossScaleAt);
  if (scale == 0) return {};
  return LossScaleState{.scale = scale,
                        .steps_without_overflow = Get<uint64_t>(bytes, kLossScaleAt + 8),
                        .hysteresis = Get<uint32_t>(bytes, kLossScaleAt + 16)};
}

bool IsPossible(const LossScaleState& scale, uint64_t step) {
  return std::isfinite(scale.scale) && scale.scale > 0 && scale.hysteresis > 0 &&
         scale.steps_without_overflow <= step;
}

/// Returns what is impossible in a record; null if nothing is.
const char* Impossible(const CommitRecord& record) {
  if (record.sequence == 0 || record.sequence > kMaxSteps) return "its sequence number";
  const CommitHead& head = record.head;
  if (head.step > kMaxSteps) return "its step";
  if (head.optimizer_steps > head.step) return "its number of optimizer steps";
  if (head.skipped_in_a_row > head.step - head.optimizer_steps) {
    return "its number of skipped steps";
  }
  if (head.loss_scale && !IsPossible(*head.loss_scale, head.step)) return "its loss scale";
  for (const CommittedTile& tile : record.tiles) {
    if (tile.version > kMaxSteps) return "the version of a tile";
    if (tile.slot > 1) return "the slot of a tile";
  }
  return nullptr;
}

}  // namespace

StateIdentity::StateIdentity(const Uuid& of_state, const ShardLayout& layout)
    : uuid(of_state),
      version(FormatVersionOf(layout)),
      world_size(layout.world_size),
      rank(layout.rank) {}

Bytes CommitBytes(uint32_t version, size_t tiles, Bytes json) {
  return Bytes{FixedBytes(version) + kCommitTileBytes * tiles + sizeof(uint64_t)} + json;
}

std::vector<std::byte> EncodeCommit(const StateIdentity& state, const CommitRecord& record) {
  const size_t size =
      CommitBytes(state.version, record.tiles.size(), Bytes{record.json.size()}).value;
  std::vector<std::byte> bytes(size);
  const std::span<std::byte> out(bytes);
  std::memcpy(bytes.data(), kCommitMagic.data(), kCommitMagic.size());
  Put<uint64_t>(out, 8, record.sequence);
  std::memcpy(bytes.data() + 16, state.uuid.data(), state.uuid.size());
  const CommitHead& head = record.head;
  const uint64_t fields[] = {size,      record.tiles.size(),  record.json.size(),
                             head.step, head.optimizer_steps, head.skipped_in_a_row,
                             head.seed};
  for (size_t i = 0; i < std::size(fields); ++i) Put<uint64_t>(out, 32 + 8 * i, fields[i]);
  Put<uint32_t>(out, 88, head.compute_threads);
  PENSTOCK_CHECK(state.version > 1 || !head.loss_scale);
  if (state.version > 1) {
    Put<uint32_t>(out, 92, state.rank);
    Put<uint32_t>(out, 96, state.world_size);
    Put<uint64_t>(out, 104, record.session);
    PutLossScale(out, head.loss_scale);
  }
  size_t at = FixedBytes(state.version);
  for (const CommittedTile& tile : record.tiles) {
    Put<uint64_t>(out, at, tile.version);
    Put<uint64_t>(out, at + 8, tile.checksums.weight);
    Put<uint64_t>(out, at + 16, tile.checksums.record);
    Put<uint32_t>(out, at + 24, tile.slot);
    at += kCommitTileBytes;
  }
  std::memcpy(bytes.data() + at, record.json.data(), record.json.size());
  Put<uint64_t>(out, size - 8, Checksum(std::span(bytes).first(size - 8)));
  return bytes;
}

Result<CommitRecord> DecodeCommit(const StateIdentity& state, std::span<const std::byte> bytes) {
  const size_t fixed = FixedBytes(state.version);
  if (bytes.size() < fixed + 8) return Corrupt("the place is too small");
  if (Get<uint64_t>(bytes, 0) == 0) {
    return MakeError(ErrorCode::kNotFound, "the place holds no commit");
  }
  const auto size = Get<uint64_t>(bytes, 32);
  const auto tiles = Get<uint64_t>(bytes, 40);
  const auto json = Get<uint64_t>(bytes, 48);
  if (std::memcmp(bytes.data(), kCommitMagic.data(), kCommitMagic.size()) != 0 ||
      std::memcmp(bytes.data() + 16, state.uuid.data(), state.uuid.size()) != 0 ||
      size > bytes.size() || tiles > bytes.size() / kCommitTileBytes || json > bytes.size() ||
      size != fixed + kCommitTileBytes * tiles + json + 8 ||
      Checksum(bytes.first(size - 8)) != Get<uint64_t>(bytes, size - 8)) {
    return Corrupt("wrong magic, UUID, size or checksum");
  }
  const bool has_more = state.version > 1;
  CommitRecord record{.sequence = Get<uint64_t>(bytes, 8),
                      .head = {.step = Get<uint64_t>(bytes, 56),
                               .optimizer_steps = Get<uint64_t>(bytes, 64),
                               .skipped_in_a_row = Get<uint64_t>(bytes, 72),
                               .seed = Get<uint64_t>(bytes, 80),
                               .compute_threads = Get<uint32_t>(bytes, 88)},
                      .session = has_more ? Get<uint64_t>(bytes, 104) : 0};
  if (has_more) record.head.loss_scale = GetLossScale(bytes);
  size_t at = fixed;
  for (uint64_t i = 0; i < tiles; ++i, at += kCommitTileBytes) {
    record.tiles.push_back({.version = Get<uint64_t>(bytes, at),
                            .checksums = {.weight = Get<uint64_t>(bytes, at + 8),
                                          .record = Get<uint64_t>(bytes, at + 16)},
                            .slot = Get<uint32_t>(bytes, at + 24)});
  }
  record.json.assign(reinterpret_cast<const char*>(bytes.data() + at), json);
  if (const char* const what = Impossible(record)) {
    return MakeError(ErrorCode::kCorruption, "{} cannot be", what);
  }
  if (!std::ranges::equal(EncodeCommit(state, record), bytes.first(size))) {
    return Corrupt("a reserved byte in it is not zero, or it is of another rank");
  }
  return record;
}

}  // namespace penstock::offload
