// Identifies a state: 16 random bytes, in its header, its name and its checksums.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace penstock::offload {

using Uuid = std::array<uint8_t, 16>;

/// Returns a random UUID. Errors: kIo.
Result<Uuid> RandomUuid();

/// Returns "9f0c…": 32 hexadecimal digits.
std::string ToString(const Uuid& uuid);

}  // namespace penstock::offload
