// What a sample of some memory holds, for callers that want to see writes that nobody announces.
//
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock::front {

/// How many words of 8 bytes a fingerprint looks at, the first and the last among them.
inline constexpr size_t kFingerprintWords = 64;

/// Returns a checksum of words spread evenly over `bytes`, and of what is behind the last whole
/// word; of all of it if it has no more than kFingerprintWords.
uint64_t Fingerprint(std::span<const std::byte> bytes);

}  // namespace penstock::front
