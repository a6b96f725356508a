// Element types, by name and size. The conversions are kernels/dtype.h.
#pragma once

#include <cstdint>

#include "base/units.h"

namespace penstock {

/// The values are part of the state file's format.
enum class DType : uint8_t { kFloat32 = 1, kBFloat16 = 2, kFloat16 = 3 };

constexpr Bytes SizeOf(DType dtype) { return dtype == DType::kFloat32 ? 4_B : 2_B; }
/// The block: consecutive elements of a module's flat index that form the unit of sums. Shards and
/// tiles end on blocks.
inline constexpr uint64_t kBlockElements = 4096;

/// "fp32", "bf16", "fp16".
const char* ToString(DType dtype);

/// How the values of a plane (offload/planes.h) are stored: as a DType, or in a form that only
/// states have. The values of the first four are part of version 1 of the state file's format.
enum class Encoding : uint8_t {
  kFloat32 = 1,
  kBFloat16 = 2,
  kFloat16 = 3,
  kInt16 = 4,
  kBlockwise8 = 5,  ///< 8 bits an element, and scales for each block
};
constexpr Encoding EncodingOf(DType dtype) { return static_cast<Encoding>(dtype); }

/// "fp32", "bf16", "fp16", "int16", "blockwise8".
const char* ToString(Encoding encoding);

}  // namespace penstock
