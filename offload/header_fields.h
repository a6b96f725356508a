// The fields of a state file's header (docs/state_format.md): the offset, type and name in messages
// of each. Encoding, decoding and messages use this one table.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "offload/byte_fields.h"
#include "offload/checksum.h"

namespace penstock::offload {

template <typename T>
struct HeaderField {
  size_t offset;
  const char* name;
};

namespace field {

inline constexpr HeaderField<std::array<char, 8>> kMagic{0, "the magic"};
inline constexpr HeaderField<uint32_t> kVersion{8, "the format version"};
inline constexpr HeaderField<uint32_t> kDType{12, "the dtype"};
inline constexpr HeaderField<Uuid> kUuid{16, "the UUID"};
inline constexpr HeaderField<uint64_t> kFlags{32, "the feature flags"};
inline constexpr HeaderField<uint32_t> kWorldSize{40, "the world size"};
inline constexpr HeaderField<uint32_t> kRank{44, "the rank"};
inline constexpr HeaderField<uint32_t> kPaths{48, "the number of paths"};
inline constexpr HeaderField<uint32_t> kPath{52, "the index of the path"};
inline constexpr HeaderField<uint64_t> kAlignment{56, "the alignment"};
inline constexpr HeaderField<uint64_t> kMaxTile{64, "the largest tile"};
inline constexpr HeaderField<uint64_t> kParameters{72, "the number of parameters"};
inline constexpr HeaderField<uint64_t> kTiles{80, "the number of tiles"};
inline constexpr HeaderField<uint64_t> kLayoutOffset{88, "the offset of the layout"};
inline constexpr HeaderField<uint64_t> kLayoutSize{96, "the size of the layout"};
inline constexpr HeaderField<uint64_t> kDescriptorsOffset{104, "the offset of the descriptors"};
inline constexpr HeaderField<uint64_t> kDescriptorsSize{112, "the size of the descriptors"};
inline constexpr HeaderField<uint64_t> kCommitOffset[] = {{120, "the offset of commit place 0"},
                                                          {128, "the offset of commit place 1"}};
inline constexpr HeaderField<uint64_t> kCommitSize{136, "the size of a commit place"};
inline constexpr HeaderField<uint64_t> kWeightsOffset[] = {{144, "the offset of slot 0's weights"},
                                                           {152, "the offset of slot 1's weights"}};
inline constexpr HeaderField<uint64_t> kRecordsOffset[] = {{160, "the offset of slot 0's records"},
                                                           {168, "the offset of slot 1's records"}};
inline constexpr HeaderField<uint64_t> kSpillOffset{176, "the offset of the spill"};
inline constexpr HeaderField<uint64_t> kSpillSize{184, "the size of the spill"};
inline constexpr HeaderField<uint64_t> kFileSize{192, "the file size"};
inline constexpr HeaderField<uint64_t> kLayoutChecksum{200,
                                                       "the checksum of layout and descriptors"};
// The fields from here on are of version 2; version 1 has reserved bytes.
inline constexpr HeaderField<uint64_t> kCommitJson{208, "the room for a commit's JSON text"};
inline constexpr HeaderField<uint64_t> kFrozenOffset{216, "the offset of the frozen weights"};
inline constexpr HeaderField<uint64_t> kFrozenSize{224, "the size of the frozen weights"};
inline constexpr HeaderField<uint8_t> kReserved{232, "a reserved byte"};  ///< and all behind it
inline constexpr HeaderField<uint64_t> kChecksum{4088, "the checksum of the header"};

}  // namespace field

template <typename T>
T ReadField(std::span<const std::byte> header, const HeaderField<T>& field) {
  return Get<T>(header, field.offset);
}
template <typename T>
void WriteField(std::span<std::byte> header, const HeaderField<T>& field, const T& value) {
  Put<T>(header, field.offset, value);
}

/// The name of the field that a byte of the header of a version belongs to.
std::string FieldAt(uint32_t version, size_t offset);

}  // namespace penstock::offload
