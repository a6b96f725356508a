#include "offload/checksum.h"

#include <xxhash.h>

#include <cstring>
#include <vector>

#include "base/check.h"

namespace penstock::offload {
namespace {

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
  struct State {
    Bytes element;
    StatePtr hash;
  };
  uint64_t seed = 0;
  State weight;
  std::vector<State> record;
};

TileHasher::TileHasher(const Layout& layout) : states_(std::make_unique<States>()) {
  const auto make = [](Bytes element) {
    return States::State{element, StatePtr(XXH3_createState())};
  };
  states_->weight = make(layout.WeightBytes(1));
  for (const RecordState& state : layout.States()) {
    states_->record.push_back(make(state.element));
  }
  Reset(0);
}

TileHasher::TileHasher(TileHasher&&) noexcept = default;
TileHasher::~TileHasher() = default;

void TileHasher::Reset(uint64_t seed) {
  states_->seed = seed;
  XXH3_64bits_reset_withSeed(states_->weight.hash.get(), seed);
  for (const auto& state : states_->record) XXH3_64bits_reset_withSeed(state.hash.get(), seed);
}

void TileHasher::Add(std::span<const std::byte> weight, std::span<const std::byte> record,
                     uint64_t begin, uint64_t count) {
  const uint64_t elements = weight.size() / states_->weight.element.value;
  PENSTOCK_CHECK(begin <= elements && count <= elements - begin, "elements {} + {} of {}", begin,
                 count, elements);
  const auto add = [begin, count](const States::State& state, std::span<const std::byte> whole) {
    const auto piece = whole.subspan((state.element * begin).value, (state.element * count).value);
    XXH3_64bits_update(state.hash.get(), piece.data(), piece.size());
  };
  add(states_->weight, weight);
  for (const auto& state : states_->record) {
    const size_t size = (state.element * elements).value;
    PENSTOCK_CHECK(size <= record.size(), "a record of fewer than {} elements", elements);
    add(state, record.first(size));
    record = record.subspan(size);
  }
}

TileChecksums TileHasher::Finish() const {
  std::vector<uint64_t> parts;
  for (const auto& state : states_->record) {
    parts.push_back(XXH3_64bits_digest(state.hash.get()));
  }
  return {XXH3_64bits_digest(states_->weight.hash.get()), CombineStates(states_->seed, parts)};
}

uint64_t WeightChecksum(uint64_t seed, std::span<const std::byte> weight) {
  return XXH3_64bits_withSeed(weight.data(), weight.size(), seed);
}

uint64_t RecordChecksum(uint64_t seed, const Layout& layout, std::span<const std::byte> record) {
  std::vector<uint64_t> parts;
  const uint64_t elements = record.size() / layout.RecordBytes(1).value;
  PENSTOCK_CHECK(layout.RecordBytes(elements).value == record.size());
  for (const RecordState& state : layout.States()) {
    const size_t size = (state.element * elements).value;
    parts.push_back(XXH3_64bits_withSeed(record.data(), size, seed));
    record = record.subspan(size);
  }
  return CombineStates(seed, parts);
}

}  // namespace penstock::offload
