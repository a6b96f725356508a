#include "base/random.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

// Multipliers and Weyl constants of Philox4x32 (Salmon et al., table 2 and section 3.3).
constexpr uint64_t kMultiplier0 = 0xD2511F53;
constexpr uint64_t kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9;
constexpr uint32_t kWeyl1 = 0xBB67AE85;
constexpr int kPhiloxRounds = 10;
constexpr int kFeistelRounds = 6;

double UnitInterval(uint32_t high, uint32_t low) {
  const uint64_t bits = (static_cast<uint64_t>(high) << 32 | low) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1p-53;
}

/// Two deviates of Box and Muller, as a point.
struct Polar {
  double radius = 0;
  double angle = 0;

  float even() const { return static_cast<float>(radius * std::cos(angle)); }
  float odd() const { return static_cast<float>(radius * std::sin(angle)); }
};

Polar PolarPair(uint64_t key, uint64_t stream, uint64_t pair) {
  const auto bits = Philox(key, stream, pair);
  return {.radius = std::sqrt(-2.0 * std::log(UnitInterval(bits[0], bits[1]))),
          .angle = 2.0 * std::numbers::pi * UnitInterval(bits[2], bits[3])};
}

}  // namespace

std::array<uint32_t, 4> Philox(uint64_t key, uint64_t stream, uint64_t index) {
  auto key0 = static_cast<uint32_t>(key);
  auto key1 = static_cast<uint32_t>(key >> 32);
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                               static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = kMultiplier0 * c[0];
    const uint64_t product1 = kMultiplier1 * c[2];
    c = {static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return c;
}

void FillRandom(uint64_t key, std::span<std::byte> bytes) {
  for (uint64_t block = 0; !bytes.empty(); ++block) {
    const auto bits = Philox(key, 0, block);
    const size_t count = std::min(sizeof(bits), bytes.size());
    std::memcpy(bytes.data(), bits.data(), count);
    bytes = bytes.subspan(count);
  }
}

float StandardNormal(uint64_t key, uint64_t stream, uint64_t index) {
  const Polar pair = PolarPair(key, stream, index / 2);
  return index % 2 == 0 ? pair.even() : pair.odd();
}

void FillStandardNormal(uint64_t key, uint64_t stream, uint64_t begin, std::span<float> values) {
  if (!values.empty() && begin % 2 != 0) {
    values.front() = StandardNormal(key, stream, begin);
    values = values.subspan(1);
    ++begin;
  }
  for (; values.size() >= 2; values = values.subspan(2), begin += 2) {
    const Polar pair = PolarPair(key, stream, begin / 2);
    values[0] = pair.even();
    values[1] = pair.odd();
  }
  if (!values.empty()) values.front() = StandardNormal(key, stream, begin);
}

Permutation::Permutation(uint64_t key, uint64_t stream, uint64_t n)
    : key_(key), stream_(stream), n_(n), half_bits_(1) {
  PENSTOCK_CHECK(n > 0);
  while (half_bits_ < 32 && (uint64_t{1} << (2 * half_bits_)) < n) ++half_bits_;
}

uint64_t Permutation::Round(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint64_t round = 0; round < kFeistelRounds; ++round) {
    const uint64_t mixed = Philox(key_, stream_, right << 8 | round)[0] & mask;
    left ^= mixed;
    std::swap(left, right);
  }
  return left << half_bits_ | right;
}

uint64_t Permutation::operator()(uint64_t position) const {
  PENSTOCK_CHECK(position < n_);
  uint64_t element = Round(position);
  while (element >= n_) element = Round(element);
  return element;
}

}  // namespace penstock
