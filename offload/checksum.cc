#include "offload/checksum.h"

#include <xxhash.h>

#include <cstring>
#include <vector>

#include "base/check.h"

namespace penstock::offload {
namespace {

constexpr std::array<Bytes, 3> kSplitStates = {2_B, 4_B, 4_B};
constexpr std::array<Bytes, 2> kMasterStates = {4_B, 4_B};

/// The states own no memory beyond themselves; XXH3_createState aligns them as XXH3 needs.
struct StateDeleter {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};
using StatePtr = std::unique_ptr<XXH3_state_t, StateDeleter>;

uint64_t CombineStates(uint64_t seed, std::span<const uint64_t> checksums) {
  return XXH3_64bits_withSeed(checksums.data(), checksums.size_bytes(), seed);
}

}  // namespace

uint64_t Checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t TileSeed(const Uuid& uuid, TileId tile, uint64_t version) {
  std::array<std::byte, 32> identity{};
  const uint64_t number = Index(tile);
  std::memcpy(identity.data(), uuid.data(), 16);
  std::memcpy(identity.data() + 16, &number, 8);
  std::memcpy(identity.data() + 24, &version, 8);
  return Checksum(identity);
}

struct TileHasher::States {
  uint64_t seed = 0;
  StatePtr weight;
  std::vector<StatePtr> record;
};

TileHasher::TileHasher(size_t record_states) : states_(std::make_unique<States>()) {
  states_->weight.reset(XXH3_createState());
  for (size_t i = 0; i < record_states; ++i) states_->record.emplace_back(XXH3_createState());
  Reset(0);
}

TileHasher::TileHasher(TileHasher&&) noexcept = default;
TileHasher::~TileHasher() = default;

void TileHasher::Reset(uint64_t seed) {
  states_->seed = seed;
  XXH3_64bits_reset_withSeed(states_->weight.get(), seed);
  for (auto& state : states_->record) XXH3_64bits_reset_withSeed(state.get(), seed);
}

void TileHasher::AddWeight(std::span<const std::byte> bytes) {
  XXH3_64bits_update(states_->weight.get(), bytes.data(), bytes.size());
}

void TileHasher::AddState(size_t state, std::span<const std::byte> bytes) {
  XXH3_64bits_update(states_->record[state].get(), bytes.data(), bytes.size());
}

TileChecksums TileHasher::Finish() const {
  std::vector<uint64_t> parts;
  for (const auto& state : states_->record) parts.push_back(XXH3_64bits_digest(state.get()));
  return {XXH3_64bits_digest(states_->weight.get()), CombineStates(states_->seed, parts)};
}

uint64_t WeightChecksum(uint64_t seed, std::span<const std::byte> weight) {
  return XXH3_64bits_withSeed(weight.data(), weight.size(), seed);
}

uint64_t RecordChecksum(uint64_t seed, DType dtype, uint64_t elements,
                        std::span<const std::byte> record) {
  std::vector<uint64_t> parts;
  size_t offset = 0;
  for (Bytes size : RecordStates(dtype)) {
    const size_t bytes = (size * elements).value;
    parts.push_back(XXH3_64bits_withSeed(record.data() + offset, bytes, seed));
    offset += bytes;
  }
  PENSTOCK_CHECK(offset == record.size());
  return CombineStates(seed, parts);
}

std::span<const Bytes> RecordStates(DType dtype) {
  if (dtype == DType::kFloat32) return kMasterStates;
  return kSplitStates;
}

}  // namespace penstock::offload
