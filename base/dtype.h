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

}  // namespace penstock
