// Random numbers that depend only on their key and index, not on earlier draws.
//
// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

/// Returns the 128 random bits that belong to (key, index).
std::array<uint32_t, 4> Philox(uint64_t key, uint64_t stream, uint64_t index);

/// Fills with the random bytes of (key, stream 0) from the first on. No drive or file system can
/// compress them.
void FillRandom(uint64_t key, std::span<std::byte> bytes);

/// Returns standard normal deviate number `index` of (key, stream): Box-Muller in double on one
/// Philox block a pair, so that any range of elements can be made without the elements before it.
float StandardNormal(uint64_t key, uint64_t stream, uint64_t index);

/// Sets values[i] to StandardNormal(key, stream, begin + i), in half the time: both deviates of a
/// pair come from one block.
void FillStandardNormal(uint64_t key, uint64_t stream, uint64_t begin, std::span<float> values);

/// A permutation of [0, n) as a function: position -> element, without a table. A Feistel network
/// over the next even power of two at or above n, walked until it falls into range (cycle walking).
class Permutation {
 public:
  /// Precondition: n > 0.
  Permutation(uint64_t key, uint64_t stream, uint64_t n);
  uint64_t operator()(uint64_t position) const;

 private:
  uint64_t Round(uint64_t value) const;

  uint64_t key_;
  uint64_t stream_;
  uint64_t n_;
  int half_bits_;
};

}  // namespace penstock
