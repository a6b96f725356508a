// The planes of a tile: the states of its elements, how each is stored, and its place in the tile's
// memory. Plain values.
//
// A plane holds one state of all the tile's elements, one block after the other. The model computes
// with the plane of the weight, which is a separate part in memory and on the drive. The other
// planes are stored one after the other in the tile's record.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

#include "base/dtype.h"
#include "base/units.h"

namespace penstock::offload {

/// What a plane holds of each element.
enum class PlaneRole : uint8_t {
  kWeight,    ///< the weight that the model computes with; in fp32 training also the master
  kLo,        ///< the difference of a bf16 weight and its fp32 master (kernels::SplitMaster)
  kMaster,    ///< the fp32 master of a weight of 16 bits
  kExpAvg,    ///< the first moment
  kExpAvgSq,  ///< the second moment; Adagrad's sum of squares
};

/// "weight", "lo", "master", "exp_avg", "exp_avg_sq".
const char* ToString(PlaneRole role);

/// Every plane takes a multiple of this in memory and in a file, so that each can be read with
/// O_DIRECT. Only encodings with scales need padding for that.
inline constexpr Bytes kPlaneAlignment = 4_KiB;

struct Plane {
  PlaneRole role{};
  Encoding encoding{};
  Bytes block;  ///< bytes of a block of kBlockElements elements, with its scales

  /// Returns what this plane of a tile takes, padding included. `elements`: a multiple of a block.
  Bytes Size(uint64_t elements) const {
    return AlignUp(block * (elements / kBlockElements), kPlaneAlignment);
  }
  bool operator==(const Plane&) const = default;
};

/// Makes a plane whose elements are stored one by one. Precondition: the encoding has no scales.
Plane MakePlane(PlaneRole role, Encoding encoding);
/// Makes a plane of 8 bits an element with an fp32 scale for each 256 elements. A block has first
/// the 4096 values, then the 16 scales.
Plane MakeBlockwise8Plane(PlaneRole role);

/// The moments that the optimizer keeps of every element.
struct Moments {
  bool exp_avg = true;
  bool exp_avg_sq = true;
  DType dtype = DType::kFloat32;  ///< or kBFloat16

  bool operator==(const Moments&) const = default;
};

/// The planes of a tile: first the weight's, then those of the record in their order. No role
/// occurs twice.
class Planes {
 public:
  static constexpr size_t kMaxCount = 6;

  Planes(std::initializer_list<Plane> planes);
  explicit Planes(std::span<const Plane> planes);

  const Plane& weight() const { return planes_.front(); }
  std::span<const Plane> record() const { return all().subspan(1); }
  std::span<const Plane> all() const { return std::span(planes_).first(count_); }
  /// Returns null if no plane has this role.
  const Plane* Find(PlaneRole role) const;

  /// Return the size of each part of a tile. `elements`: a multiple of a block.
  Bytes WeightSize(uint64_t elements) const { return weight().Size(elements); }
  Bytes RecordSize(uint64_t elements) const;

  bool operator==(const Planes&) const = default;

 private:
  std::array<Plane, kMaxCount> planes_{};
  size_t count_ = 0;
};

/// The planes of a tile that is trained with weights of `dtype`: an fp32 weight is its own master,
/// a bf16 weight has a lo, an fp16 weight a master beside it.
Planes MakePlanes(DType dtype, const Moments& moments = {});
/// The planes of a tile that is never updated.
Planes MakeFrozenPlanes(DType dtype);

/// Whether tiles may have these planes. The weight is fp32, bf16 or fp16. A frozen one stands
/// alone. Of the others, an fp32 weight has neither lo nor master, a bf16 weight has one of them,
/// and an fp16 weight has a master; a lo is int16, a master is fp32, moments are fp32, bf16 or
/// blockwise8.
bool CanBe(const Planes& planes, bool frozen);

}  // namespace penstock::offload
