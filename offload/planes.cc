#include "offload/planes.h"

#include <algorithm>

#include "base/check.h"

namespace penstock::offload {
namespace {

constexpr Bytes kBlockwise8Scales{kBlockElements / 256 * sizeof(float)};

}  // namespace

const char* ToString(PlaneRole role) {
  switch (role) {
    case PlaneRole::kWeight:
      return "weight";
    case PlaneRole::kLo:
      return "lo";
    case PlaneRole::kMaster:
      return "master";
    case PlaneRole::kExpAvg:
      return "exp_avg";
    case PlaneRole::kExpAvgSq:
      return "exp_avg_sq";
  }
  return "?";
}

Plane MakePlane(PlaneRole role, Encoding encoding) {
  PENSTOCK_CHECK(encoding != Encoding::kBlockwise8, "a plane of 8 bits has scales");
  const Bytes element = encoding == Encoding::kFloat32 ? 4_B : 2_B;
  return {.role = role, .encoding = encoding, .block = element * kBlockElements};
}

Plane MakeBlockwise8Plane(PlaneRole role) {
  return {.role = role,
          .encoding = Encoding::kBlockwise8,
          .block = Bytes{kBlockElements} + kBlockwise8Scales};
}

Planes::Planes(std::initializer_list<Plane> planes)
    : Planes(std::span<const Plane>(planes.begin(), planes.size())) {}

Planes::Planes(std::span<const Plane> planes) : count_(planes.size()) {
  PENSTOCK_CHECK(!planes.empty() && planes.size() <= kMaxCount &&
                 planes.front().role == PlaneRole::kWeight);
  std::ranges::copy(planes, planes_.begin());
  for (const Plane& plane : all()) PENSTOCK_CHECK(Find(plane.role) == &plane, "a role twice");
}

const Plane* Planes::Find(PlaneRole role) const {
  const auto found = std::ranges::find(all(), role, &Plane::role);
  return found == all().end() ? nullptr : &*found;
}

Bytes Planes::RecordSize(uint64_t elements) const {
  Bytes size;
  for (const Plane& plane : record()) size += plane.Size(elements);
  return size;
}

Planes MakePlanes(DType dtype, const Moments& moments) {
  std::array<Plane, Planes::kMaxCount> planes;
  size_t count = 0;
  const auto add = [&](PlaneRole role, Encoding encoding) {
    planes[count++] = MakePlane(role, encoding);
  };
  add(PlaneRole::kWeight, EncodingOf(dtype));
  if (dtype == DType::kBFloat16) add(PlaneRole::kLo, Encoding::kInt16);
  if (dtype == DType::kFloat16) add(PlaneRole::kMaster, Encoding::kFloat32);
  if (moments.exp_avg) add(PlaneRole::kExpAvg, EncodingOf(moments.dtype));
  if (moments.exp_avg_sq) add(PlaneRole::kExpAvgSq, EncodingOf(moments.dtype));
  return Planes(std::span<const Plane>(planes).first(count));
}

bool CanBe(const Planes& planes, bool frozen) {
  const Encoding weight = planes.weight().encoding;
  if (frozen) return weight <= Encoding::kFloat16 && planes.record().empty();
  const Plane* const lo = planes.Find(PlaneRole::kLo);
  const Plane* const master = planes.Find(PlaneRole::kMaster);
  if (lo != nullptr && lo->encoding != Encoding::kInt16) return false;
  if (master != nullptr && master->encoding != Encoding::kFloat32) return false;
  for (const PlaneRole role : {PlaneRole::kExpAvg, PlaneRole::kExpAvgSq}) {
    const Plane* const moments = planes.Find(role);
    if (moments == nullptr) continue;
    const bool known = moments->encoding == Encoding::kFloat32 ||
                       moments->encoding == Encoding::kBFloat16 ||
                       moments->encoding == Encoding::kBlockwise8;
    if (!known) return false;
  }
  switch (weight) {
    case Encoding::kFloat32:
      return lo == nullptr && master == nullptr;
    case Encoding::kBFloat16:
      return (lo == nullptr) != (master == nullptr);
    case Encoding::kFloat16:
      return lo == nullptr && master != nullptr;
    case Encoding::kInt16:
    case Encoding::kBlockwise8:
      break;
  }
  return false;
}

Planes MakeFrozenPlanes(DType dtype) { return {MakePlane(PlaneRole::kWeight, EncodingOf(dtype))}; }

}  // namespace penstock::offload
