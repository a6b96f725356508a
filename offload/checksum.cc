#include "offload/checksum.h"

#ifdef PENSTOCK_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // the same hashes, by the widest instructions that the CPU has
#else
#include <xxhash.h>
#endif

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace penstock::offload {

/// It owns no memory beyond itself; XXH3_createState aligns it as XXH3 needs.
struct FreeHash {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};
using Hash = std::unique_ptr<XXH3_state_t, FreeHash>;

namespace {

uint64_t CombineStates(uint64_t seed, std::span<const uint64_t> checksums) {
  return XXH3_64bits_withSeed(checksums.data(), checksums.size_bytes(), seed);
}

}  // namespace

uint64_t Checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

struct StreamHasher::State {
  Hash hash;
};

StreamHasher::StreamHasher() : state_(std::make_unique<State>()) {
  state_->hash.reset(XXH3_createState());
  XXH3_64bits_reset(state_->hash.get());
}

StreamHasher::~StreamHasher() = default;

void StreamHasher::Add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->hash.get(), bytes.data(), bytes.size());
}

uint64_t StreamHasher::Finish() const { return XXH3_64bits_digest(state_->hash.get()); }

uint64_t TileSeed(const Uuid& uuid, const ShardLayout& layout, TileId tile, uint64_t version) {
  std::array<std::byte, 32> identity{};
  const uint64_t number = uint64_t{layout.rank} << 32 | Index(tile);
  std::memcpy(identity.data(), uuid.data(), 16);
  std::memcpy(identity.data() + 16, &number, 8);
  std::memcpy(identity.data() + 24, &version, 8);
  return Checksum(identity);
}

struct TileHasher::States {
  uint64_t seed = 0;
  Planes planes = MakeFrozenPlanes(DType::kFloat32);
  uint64_t elements = 0;
  std::array<Hash, Planes::kMaxCount> hashes;  ///< hash of each plane
};

TileHasher::TileHasher() : states_(std::make_unique<States>()) {
  for (Hash& hash : states_->hashes) hash.reset(XXH3_createState());
}

TileHasher::TileHasher(TileHasher&&) noexcept = default;
TileHasher::~TileHasher() = default;

void TileHasher::Reset(uint64_t seed, const Planes& planes, uint64_t elements) {
  states_->seed = seed;
  states_->planes = planes;
  states_->elements = elements;
  for (const Hash& hash : states_->hashes) XXH3_64bits_reset_withSeed(hash.get(), seed);
}

void TileHasher::Add(std::span<const std::byte> weight, std::span<const std::byte> record,
                     uint64_t begin, uint64_t count) {
  const uint64_t elements = states_->elements;
  PENSTOCK_CHECK(begin <= elements && count <= elements - begin && begin % kBlockElements == 0 &&
                     count % kBlockElements == 0,
                 "elements {} + {} of {}", begin, count, elements);
  const std::span<const Plane> planes = states_->planes.all();
  for (size_t i = 0; i < planes.size(); ++i) {
    const Plane& plane = planes[i];
    const size_t size = plane.Size(elements).value;
    std::span<const std::byte>& part = i == 0 ? weight : record;
    PENSTOCK_CHECK(size <= part.size(), "a part of fewer than {} elements", elements);
    const size_t from = (plane.block * (begin / kBlockElements)).value;
    const size_t to =
        begin + count == elements ? size : (plane.block * ((begin + count) / kBlockElements)).value;
    XXH3_64bits_update(states_->hashes[i].get(), part.data() + from, to - from);
    part = part.subspan(size);
  }
}

TileChecksums TileHasher::Finish() const {
  std::array<uint64_t, Planes::kMaxCount> digests{};
  const size_t count = states_->planes.all().size();
  for (size_t i = 0; i < count; ++i) digests[i] = XXH3_64bits_digest(states_->hashes[i].get());
  return {digests[0], CombineStates(states_->seed, std::span(digests).first(count).subspan(1))};
}

struct PartHasher::State {
  uint64_t seed = 0;
  bool record = false;
  std::vector<uint64_t> sizes;    ///< sizes of the part's planes
  std::vector<uint64_t> digests;  ///< digests of the complete planes
  uint64_t added = 0;             ///< bytes added to the plane after these
  Hash hash;
};

PartHasher::PartHasher() : state_(std::make_unique<State>()) {
  state_->hash.reset(XXH3_createState());
}

PartHasher::~PartHasher() = default;

void PartHasher::Reset(uint64_t seed, Part part, const Planes& planes, uint64_t elements) {
  State& state = *state_;
  state.seed = seed;
  state.record = part == Part::kRecord;
  state.sizes.clear();
  state.digests.clear();
  state.added = 0;
  const std::span<const Plane> of_part = state.record ? planes.record() : planes.all().first(1);
  for (const Plane& plane : of_part) state.sizes.push_back(plane.Size(elements).value);
  XXH3_64bits_reset_withSeed(state.hash.get(), seed);
}

void PartHasher::Add(std::span<const std::byte> bytes) {
  State& state = *state_;
  while (!bytes.empty()) {
    PENSTOCK_CHECK(state.digests.size() < state.sizes.size(), "bytes after a part's last one");
    const uint64_t missing = state.sizes[state.digests.size()] - state.added;
    const std::span<const std::byte> now = bytes.first(std::min<uint64_t>(missing, bytes.size()));
    XXH3_64bits_update(state.hash.get(), now.data(), now.size());
    state.added += now.size();
    bytes = bytes.subspan(now.size());
    if (now.size() < missing) return;
    state.digests.push_back(XXH3_64bits_digest(state.hash.get()));
    state.added = 0;
    XXH3_64bits_reset_withSeed(state.hash.get(), state.seed);
  }
}

uint64_t PartHasher::Finish() const {
  PENSTOCK_CHECK(state_->digests.size() == state_->sizes.size(), "a part ends too early");
  return state_->record ? CombineStates(state_->seed, state_->digests) : state_->digests.front();
}

uint64_t WeightChecksum(uint64_t seed, std::span<const std::byte> weight) {
  return XXH3_64bits_withSeed(weight.data(), weight.size(), seed);
}

uint64_t RecordChecksum(uint64_t seed, const ShardLayout& layout, TileId tile,
                        std::span<const std::byte> record) {
  PENSTOCK_CHECK(layout.RecordBytes(tile).value == record.size());
  std::vector<uint64_t> parts;
  for (const Plane& plane : layout.planes(tile).record()) {
    const size_t size = plane.Size(layout.tile(tile).elements).value;
    parts.push_back(XXH3_64bits_withSeed(record.data(), size, seed));
    record = record.subspan(size);
  }
  return CombineStates(seed, parts);
}

TileChecksums ChecksumsOf(const Uuid& uuid, const ShardLayout& layout, TileId tile,
                          uint64_t version, std::span<const std::byte> weight,
                          std::span<const std::byte> record) {
  const uint64_t seed = TileSeed(uuid, layout, tile, version);
  return {WeightChecksum(seed, weight), RecordChecksum(seed, layout, tile, record)};
}

Error DamagedPart(const ShardLayout& layout, Part part, TileId tile, uint64_t version,
                  const std::string& place) {
  return MakeError(ErrorCode::kCorruption,
                   "checksum of tile {} (module {}) does not hold: {} of version {}, read from {}; "
                   "the drive gave other data than was written to it, check the drive",
                   Index(tile), layout.module(tile).name,
                   part == Part::kWeight ? "weight" : "record", version, place);
}

Error DamagedInMemory(const ShardLayout& layout, Part part, TileId tile, uint64_t version) {
  return MakeError(
      ErrorCode::kCorruption,
      "checksum of tile {} (module {}) does not hold: {} of version {} in host memory "
      "is not what was left there; RAM has lost it, or a program wrote over it: test the "
      "memory",
      Index(tile), layout.module(tile).name, part == Part::kWeight ? "weight" : "record", version);
}

}  // namespace penstock::offload
