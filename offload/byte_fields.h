// Fixed-size fields at byte offsets, for the state file's formats.
//
// Little-endian, like every machine that penstock runs on.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "base/check.h"

namespace penstock::offload {

template <typename T>
void Put(std::span<std::byte> bytes, size_t at, T value) {
  PENSTOCK_CHECK(at + sizeof(T) <= bytes.size());
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

template <typename T>
T Get(std::span<const std::byte> bytes, size_t at) {
  PENSTOCK_CHECK(at + sizeof(T) <= bytes.size());
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

}  // namespace penstock::offload
