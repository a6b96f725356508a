#include "offload/checksum.h"

#ifdef PENSTOCK_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // the same hashes, by the widest instructions that the CPU has
#else
#include <xxhash.h>
#endif

#include <cstring>
#include <vector>

#include "base/check.h"

namespace penstock::offload {
namespace {

/// The states own no memory beyond themselves; XXH3_createState aligns them as XXH3 needs.
uint64_t CombineStates(uint64_t seed, std::span<const uint64_t> checksums) {
  return XXH3_64bits_withSeed(checksums.data(), checksums.size_bytes(), seed);
}

}  // namespace

uint64_t Checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t TileSeed(const Uuid& uuid, const ShardLayout& layout, TileId tile, uint64_t version) {
  std::array<std::byte, 32> identity{};
  const uint64_t number = uint64_t{layout.rank} << 32 | Index(tile);
  std::memcpy(identity.data(), uuid.data(), 16);
  std::memcpy(identity.data() + 16, &number, 8);
  std::memcpy(identity.data() + 24, &version, 8);
  return Checksum(identity);
}

struct TileHasher::States {
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  using Hash = std::unique_ptr<XXH3_state_t, Free>;

  uint64_t seed = 0;
  Planes planes = MakeFrozenPlanes(DType::kFloat32);
  uint64_t elements = 0;
  std::array<Hash, Planes::kMost> hashes;  ///< of each plane
};

TileHasher::TileHasher() : states_(std::make_unique<States>()) {
  for (States::Hash& hash : states_->hashes) hash.reset(XXH3_createState());
}

TileHasher::TileHasher(TileHasher&&) noexcept = default;
TileHasher::~TileHasher() = default;

void TileHasher::Reset(uint64_t seed, const Planes& planes, uint64_t elements) {
  states_->seed = seed;
  states_->planes = planes;
  states_->elements = elements;
  for (const States::Hash& hash : states_->hashes) XXH3_64bits_reset_withSeed(hash.get(), seed);
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
  std::array<uint64_t, Planes::kMost> digests{};
  const size_t count = states_->planes.all().size();
  for (size_t i = 0; i < count; ++i) digests[i] = XXH3_64bits_digest(states_->hashes[i].get());
  return {digests[0], CombineStates(states_->seed, std::span(digests).first(count).subspan(1))};
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

}  // namespace penstock::offload
