// Strong types for the quantities that are easy to mix up: sizes, positions in files, identities.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace penstock {

/// A size in bytes. Never negative; subtraction below zero is a broken contract of the caller.
struct Bytes {
  uint64_t value = 0;

  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes& operator+=(Bytes other) {
    value += other.value;
    return *this;
  }
  constexpr Bytes& operator-=(Bytes other) {
    value -= other.value;
    return *this;
  }
};

constexpr Bytes operator+(Bytes a, Bytes b) { return Bytes{a.value + b.value}; }
constexpr Bytes operator-(Bytes a, Bytes b) { return Bytes{a.value - b.value}; }
constexpr Bytes operator*(Bytes a, uint64_t n) { return Bytes{a.value * n}; }
constexpr Bytes operator*(uint64_t n, Bytes a) { return a * n; }
constexpr uint64_t operator/(Bytes a, Bytes b) { return a.value / b.value; }

/// A position in a file, in bytes from its start.
struct FileOffset {
  uint64_t value = 0;

  constexpr auto operator<=>(const FileOffset&) const = default;
};

constexpr FileOffset operator+(FileOffset a, Bytes b) { return FileOffset{a.value + b.value}; }

inline namespace literals {
constexpr Bytes operator""_B(unsigned long long n) { return Bytes{n}; }
constexpr Bytes operator""_KiB(unsigned long long n) { return Bytes{n << 10}; }
constexpr Bytes operator""_MiB(unsigned long long n) { return Bytes{n << 20}; }
constexpr Bytes operator""_GiB(unsigned long long n) { return Bytes{n << 30}; }
}  // namespace literals

/// The smallest multiple of `alignment` that is not below `size`. Precondition: alignment > 0.
constexpr Bytes AlignUp(Bytes size, Bytes alignment) {
  return Bytes{(size.value + alignment.value - 1) / alignment.value * alignment.value};
}

/// For people: "1.50 GiB", "64.0 MiB", "512 bytes".
std::string ToString(Bytes size);

/// Reads "64MiB", "1GiB", "512KiB", "1.5GiB" or plain bytes ("4096"). Powers of 1024 only; "MB" is
/// refused, as it means two things. Errors: kInvalidArgument, naming what was read.
Result<Bytes> ParseBytes(const std::string& text);

}  // namespace penstock
