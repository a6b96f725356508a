#include "offload/tile_descriptors.h"

#include <algorithm>
#include <array>

#include "offload/byte_fields.h"
#include "offload/layout_text.h"

namespace penstock::offload {
namespace {

// Max states of a record in version 1.
constexpr size_t kMaxStates = 6;
/// A descriptor's states: their number, then a kind and an encoding for each.
constexpr size_t kStatesAt = 25;
constexpr size_t kKindsAt = kStatesAt + 1;
constexpr size_t kEncodingsAt = kKindsAt + kMaxStates;
constexpr size_t kStatesBytes = 1 + 2 * kMaxStates;
constexpr uint8_t kExpAvg = 2;
constexpr uint8_t kExpAvgSq = 3;

uint8_t V1Kind(PlaneRole role) {
  switch (role) {
    case PlaneRole::kLo:
      return 1;
    case PlaneRole::kExpAvg:
      return kExpAvg;
    case PlaneRole::kExpAvgSq:
      return kExpAvgSq;
    case PlaneRole::kWeight:
    case PlaneRole::kMaster:
      break;
  }
  PENSTOCK_CHECK(false, "version 1 has no {}", ToString(role));
}

void EncodeStates(const Planes& planes, std::span<std::byte> descriptor) {
  uint8_t count = 0;
  for (const Plane& plane : planes.record()) {
    Put<uint8_t>(descriptor, kKindsAt + count, V1Kind(plane.role));
    Put<uint8_t>(descriptor, kEncodingsAt + count, static_cast<uint8_t>(plane.encoding));
    ++count;
  }
  Put<uint8_t>(descriptor, kStatesAt, count);
}

/// The moments that a descriptor names; what it names beside them is not looked at.
Moments MomentsOf(std::span<const std::byte> descriptor) {
  Moments moments{.exp_avg = false, .exp_avg_sq = false};
  for (size_t i = 0; i < kMaxStates; ++i) {
    const auto kind = Get<uint8_t>(descriptor, kKindsAt + i);
    if (kind != kExpAvg && kind != kExpAvgSq) continue;
    (kind == kExpAvg ? moments.exp_avg : moments.exp_avg_sq) = true;
    const bool bf16 =
        Get<uint8_t>(descriptor, kEncodingsAt + i) == static_cast<uint8_t>(Encoding::kBFloat16);
    moments.dtype = bf16 ? DType::kBFloat16 : DType::kFloat32;
  }
  return moments;
}

/// Whether a descriptor names the states of these planes, and nothing else.
bool HasStatesOf(const Planes& planes, std::span<const std::byte> descriptor) {
  std::array<std::byte, kDescriptorBytes.value> expected{};
  EncodeStates(planes, expected);
  return std::ranges::equal(descriptor.subspan(kStatesAt, kStatesBytes),
                            std::span(expected).subspan(kStatesAt, kStatesBytes));
}

std::span<const std::byte> Descriptor(std::span<const std::byte> descriptors, size_t tile) {
  return descriptors.subspan(tile * kDescriptorBytes.value, kDescriptorBytes.value);
}

}  // namespace

bool HasV1Planes(const ModelLayout& model) {
  if (model.groups.empty()) return false;
  const Planes& planes = model.groups.front().planes;
  if (model.groups != DecayGroups(planes)) return false;
  for (const DType weight : {DType::kFloat32, DType::kBFloat16}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const bool exp_avg : {false, true}) {
        for (const bool exp_avg_sq : {false, true}) {
          if (!exp_avg && !exp_avg_sq) continue;
          if (planes == MakePlanes(weight, {exp_avg, exp_avg_sq, dtype})) return true;
        }
      }
    }
  }
  return false;
}

void EncodeDescriptor(const ShardLayout& layout, TileId tile, const TilePlace& place,
                      uint32_t version, std::span<std::byte> out) {
  const TileLayout& of = layout.tile(tile);
  Put<uint32_t>(out, 0, static_cast<uint32_t>(Index(of.module)));
  Put<uint64_t>(out, 8, of.begin);
  Put<uint64_t>(out, 16, of.elements);
  if (version == 1) {
    Put<uint8_t>(out, 24, static_cast<uint8_t>(Index(of.group)));
    EncodeStates(layout.planes(tile), out);
    Put<uint16_t>(out, 38, place.path);
    Put<uint64_t>(out, 40, place.weight.value);
    Put<uint64_t>(out, 48, place.record.value);
    return;
  }
  Put<uint32_t>(out, 4, static_cast<uint32_t>(Index(of.group)));
  Put<uint16_t>(out, 24, place.path);
  Put<uint64_t>(out, 32, place.weight.value);
  Put<uint64_t>(out, 40, place.record.value);
}

Result<Planes> V1PlanesOf(std::span<const std::byte> descriptors, DType weight) {
  const Moments moments = MomentsOf(Descriptor(descriptors, 0));
  Planes planes = MakePlanes(weight, moments);
  for (size_t tile = 0; tile < descriptors.size() / kDescriptorBytes.value; ++tile) {
    if ((moments.exp_avg || moments.exp_avg_sq) &&
        HasStatesOf(planes, Descriptor(descriptors, tile))) {
      continue;
    }
    return Corrupt(
        fmt::format("the descriptor of tile {} names states that version 1 does not have", tile));
  }
  return planes;
}

Result<std::vector<uint16_t>> PathsOf(std::span<const std::byte> descriptors, uint32_t version,
                                      uint32_t paths) {
  std::vector<uint16_t> path_of_tile(descriptors.size() / kDescriptorBytes.value);
  for (size_t tile = 0; tile < path_of_tile.size(); ++tile) {
    path_of_tile[tile] = Get<uint16_t>(Descriptor(descriptors, tile), version == 1 ? 38 : 24);
    if (path_of_tile[tile] < paths) continue;
    return Corrupt(fmt::format("the descriptor of tile {} names path {}, which is none", tile,
                               path_of_tile[tile]));
  }
  return path_of_tile;
}

}  // namespace penstock::offload
