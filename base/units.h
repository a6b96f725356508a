// Strong types for the quantities that are easy to mix up: sizes, positions in files, identities.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/result.h"

namespace penstock {

// Sums and products of counts and sizes that do not fit 64 bits become the largest number. No
// budget, file or machine has as much, so a plan made of such sizes is refused like any other that
// is too large, without checks in between.
inline constexpr uint64_t kMaxCount = std::numeric_limits<uint64_t>::max();

constexpr uint64_t SaturatingAdd(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? kMaxCount : sum;
}
constexpr uint64_t SaturatingMultiply(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMaxCount : product;
}

/// A size in bytes. Sums and products saturate at kMaxCount; subtraction below zero is a broken
/// contract of the caller.
struct Bytes {
  uint64_t value = 0;

  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes& operator+=(Bytes other) {
    value = SaturatingAdd(value, other.value);
    return *this;
  }
  constexpr Bytes& operator-=(Bytes other) {
    PENSTOCK_CHECK(other.value <= value, "{} bytes less {}", value, other.value);
    value -= other.value;
    return *this;
  }
};

constexpr Bytes operator+(Bytes a, Bytes b) { return a += b; }
constexpr Bytes operator-(Bytes a, Bytes b) { return a -= b; }
constexpr Bytes operator*(Bytes a, uint64_t n) { return Bytes{SaturatingMultiply(a.value, n)}; }
constexpr Bytes operator*(uint64_t n, Bytes a) { return a * n; }
constexpr uint64_t operator/(Bytes a, Bytes b) { return a.value / b.value; }

/// A position in a file, in bytes from its start.
struct FileOffset {
  uint64_t value = 0;

  constexpr auto operator<=>(const FileOffset&) const = default;
};

constexpr FileOffset operator+(FileOffset a, Bytes b) {
  return FileOffset{SaturatingAdd(a.value, b.value)};
}

inline namespace literals {
constexpr Bytes operator""_B(unsigned long long n) { return Bytes{n}; }
constexpr Bytes operator""_KiB(unsigned long long n) { return Bytes{n << 10}; }
constexpr Bytes operator""_MiB(unsigned long long n) { return Bytes{n << 20}; }
constexpr Bytes operator""_GiB(unsigned long long n) { return Bytes{n << 30}; }
}  // namespace literals

/// Returns the smallest multiple of `alignment` that is not below `size`; kMaxCount if that does
/// not fit. Precondition: alignment > 0.
constexpr Bytes AlignUp(Bytes size, Bytes alignment) {
  const uint64_t rest = size.value % alignment.value;
  return rest == 0 ? size : size + Bytes{alignment.value - rest};
}

/// Returns readable text: "1.50 GiB", "64.0 MiB", "512 bytes".
std::string ToString(Bytes size);

/// Reads "64MiB", "1GiB", "512KiB", "1.5GiB" or plain bytes ("4096"). Powers of 1024 only; "MB" is
/// refused, because it means two things. Errors: kInvalidArgument, quoting the text.
Result<Bytes> ParseBytes(const std::string& text);

/// The whole numbers that a value may have.
struct WholeRange {
  uint64_t low = 0;
  uint64_t high = std::numeric_limits<uint64_t>::max();
};

/// Reads a whole number in decimal digits and nothing else: no sign, no space, no other base. A
/// number beyond 64 bits is refused like any other outside of `range`. Errors: kInvalidArgument,
/// naming the text and the range.
Result<uint64_t> ParseWhole(const std::string& text, WholeRange range = {});

}  // namespace penstock
