#include "front/fingerprint.h"

#include <array>
#include <cstring>

#include "offload/checksum.h"

namespace penstock::front {

uint64_t Fingerprint(std::span<const std::byte> bytes) {
  constexpr size_t kWord = sizeof(uint64_t);
  const size_t words = bytes.size() / kWord;
  if (words <= kFingerprintWords) return offload::Checksum(bytes);
  // Beside the samples there is room for what is behind the last word.
  std::array<std::byte, kWord*(kFingerprintWords + 1)> sample{};
  for (size_t i = 0; i < kFingerprintWords; ++i) {
    const size_t word = i * (words - 1) / (kFingerprintWords - 1);
    std::memcpy(&sample[kWord * i], &bytes[kWord * word], kWord);
  }
  const size_t rest = bytes.size() % kWord;
  if (rest > 0) {
    std::memcpy(&sample[kWord * kFingerprintWords], &bytes[bytes.size() - rest], rest);
  }
  return offload::Checksum(sample);
}

}  // namespace penstock::front
