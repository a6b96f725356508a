#include "offload/header_fields.h"

#include <algorithm>
#include <iterator>

namespace penstock::offload {
namespace {

struct Place {
  size_t offset;
  const char* name;

  template <typename T>
  constexpr Place(const HeaderField<T>& field)  // NOLINT(google-explicit-constructor): a table
      : offset(field.offset), name(field.name) {}
};

constexpr Place kPlaces[] = {field::kMagic,
                             field::kVersion,
                             field::kDType,
                             field::kUuid,
                             field::kFlags,
                             field::kWorldSize,
                             field::kRank,
                             field::kPaths,
                             field::kPath,
                             field::kAlignment,
                             field::kMaxTile,
                             field::kParameters,
                             field::kTiles,
                             field::kLayoutOffset,
                             field::kLayoutSize,
                             field::kDescriptorsOffset,
                             field::kDescriptorsSize,
                             field::kCommitOffset[0],
                             field::kCommitOffset[1],
                             field::kCommitSize,
                             field::kWeightsOffset[0],
                             field::kWeightsOffset[1],
                             field::kRecordsOffset[0],
                             field::kRecordsOffset[1],
                             field::kSpillOffset,
                             field::kSpillSize,
                             field::kFileSize,
                             field::kLayoutChecksum,
                             field::kCommitJson,
                             field::kFrozenOffset,
                             field::kFrozenSize,
                             field::kReserved,
                             field::kChecksum};
static_assert(std::ranges::is_sorted(kPlaces, {}, &Place::offset));

}  // namespace

std::string FieldAt(uint32_t version, size_t offset) {
  if (version == 1 && offset >= field::kCommitJson.offset && offset < field::kChecksum.offset) {
    return field::kReserved.name;
  }
  return std::prev(std::ranges::upper_bound(kPlaces, offset, {}, &Place::offset))->name;
}

}  // namespace penstock::offload
