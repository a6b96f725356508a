// Elements of the operators' dtypes in kernels: read and written several at once, computed in fp32.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "kernels/dtype.h"

namespace penstock::kernels {

__host__ __device__ constexpr float ToFloat(float value) { return value; }

template <typename T>
__device__ T FromFloat(float value);
template <>
__device__ inline float FromFloat<float>(float value) {
  return value;
}
template <>
__device__ inline BFloat16 FromFloat<BFloat16>(float value) {
  return RoundToBFloat16(value);
}
template <>
__device__ inline Float16 FromFloat<Float16>(float value) {
  return {RoundToFloat16(value)};
}

/// N elements that lie together, at an address that is a multiple of their size.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack {
  T elements[N];
};

template <int N, typename T>
__device__ Pack<T, N> LoadPack(const T* from) {
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <typename T, int N>
__device__ void StorePack(const Pack<T, N>& pack, T* to) {
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

/// What a thread reads at once.
inline constexpr size_t kPackBytes = 16;

inline bool IsAligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kPackBytes == 0;
}

/// Calls `f<T, N>()` for the dtype's element T and N elements at once: 16 bytes of them where
/// `n` is a multiple of that, else one.
template <typename F>
void WithElements(DType dtype, uint64_t n, F f) {
  const auto with = [&]<typename T>() {
    constexpr int kPack = kPackBytes / sizeof(T);
    n % kPack == 0 ? f.template operator()<T, kPack>() : f.template operator()<T, 1>();
  };
  switch (dtype) {
    case DType::kFloat32:
      return with.template operator()<float>();
    case DType::kBFloat16:
      return with.template operator()<BFloat16>();
    case DType::kFloat16:
      return with.template operator()<Float16>();
  }
}

}  // namespace penstock::kernels
