// In place of the file of this name: what the PTX manual says that mma.m16n8k16, ldmatrix, cp.async
// and ex2 do, element by element.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kernels/dtype.h"
#include "kernels/model/cuda_fragments.h"
#include "tests/emulated_cuda/block.h"
#include "tests/emulated_cuda/cudart.h"

namespace penstock::kernels {

template <typename T>
T Rounded(float value);
template <>
inline BFloat16 Rounded<BFloat16>(float value) {
  return RoundToBFloat16(value);
}
template <>
inline Float16 Rounded<Float16>(float value) {
  return {RoundToFloat16(value)};
}

template <typename T>
uint32_t PackPair(float low, float high) {
  return Rounded<T>(low).bits | uint32_t{Rounded<T>(high).bits} << 16;
}

/// Element 0 or 1 of a register.
template <typename T>
float OfPair(uint32_t pair, unsigned element) {
  return ToFloat(T{static_cast<uint16_t>(pair >> (16 * element))});
}

struct MmaOperands {
  uint32_t left[4];
  uint32_t right[2];
  float sums[4];
};
template <typename T>
void Mma(const MmaOperands* in, Sums* out) {
  float left[16][16], right[16][8];
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned group = lane / 4, two = lane % 4 * 2;
    for (unsigned i = 0; i < 2; ++i) {
      left[group][two + i] = OfPair<T>(in[lane].left[0], i);
      left[group + 8][two + i] = OfPair<T>(in[lane].left[1], i);
      left[group][two + 8 + i] = OfPair<T>(in[lane].left[2], i);
      left[group + 8][two + 8 + i] = OfPair<T>(in[lane].left[3], i);
      right[two + i][group] = OfPair<T>(in[lane].right[0], i);
      right[two + 8 + i][group] = OfPair<T>(in[lane].right[1], i);
    }
  }
  for (unsigned lane = 0; lane < 32; ++lane) {
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      float sum = in[lane].sums[i];
      for (unsigned k = 0; k < 16; ++k) sum += left[row][k] * right[k][column];
      out[lane].values[i] = sum;
    }
  }
}

template <typename T>
void MultiplyAdd(const Left& left, const RightPair& right, int half, Sums& sums) {
  MmaOperands operands{};
  for (int i = 0; i < 4; ++i) operands.left[i] = left.pairs[i];
  for (int i = 0; i < 2; ++i) operands.right[i] = right.pairs[2 * half + i];
  for (int i = 0; i < 4; ++i) operands.sums[i] = sums.values[i];
  sums = emulated_cuda::OfWarp<MmaOperands, Sums, Mma<T>>("mma", operands);
}

struct Matrices {
  uint32_t pairs[4];
};
template <bool kTransposed, typename T>
void LoadEach(const T* const* rows, Matrices* out) {
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    const T* const* const row = rows + 8 * matrix;
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned group = lane / 4, two = lane % 4 * 2;
      const T low = kTransposed ? row[two][group] : row[group][two];
      const T high = kTransposed ? row[two + 1][group] : row[group][two + 1];
      out[lane].pairs[matrix] = low.bits | uint32_t{high.bits} << 16;
    }
  }
}
template <bool kTransposed, typename T>
void LoadFour(const T* row, uint32_t (&pairs)[4]) {
  PENSTOCK_CHECK(reinterpret_cast<uintptr_t>(row) % 16 == 0, "ldmatrix of an odd address");
  PENSTOCK_CHECK(!emulated_cuda::IsOnDevice(row, 16), "ldmatrix of memory that is not shared");
  const auto loaded =
      emulated_cuda::OfWarp<const T*, Matrices, LoadEach<kTransposed, T>>("ldmatrix", row);
  for (int i = 0; i < 4; ++i) pairs[i] = loaded.pairs[i];
}

template <typename T>
void LoadMatrices(const T* row, uint32_t (&pairs)[4]) {
  LoadFour<false>(row, pairs);
}
template <typename T>
void LoadMatricesTransposed(const T* row, uint32_t (&pairs)[4]) {
  LoadFour<true>(row, pairs);
}

/// A copy is made as late as it may be: when its thread waits for it. Until then its place holds
/// NaN.
struct CopyUnderWay {
  const void* from;  ///< null: zeros
  void* to;
};
/// Of the block's thread.
inline std::vector<CopyUnderWay>& CopiesUnderWay() {
  static thread_local std::vector<CopyUnderWay> copies[1024];
  return copies[threadIdx.x];
}
template <typename T>
void Copy16Bytes(const T* from, bool inside, T* to) {
  PENSTOCK_CHECK(reinterpret_cast<uintptr_t>(to) % 16 == 0, "cp.async to an odd address");
  PENSTOCK_CHECK(!emulated_cuda::IsOnDevice(to, 16), "cp.async to memory that is not shared");
  if (inside) {
    PENSTOCK_CHECK(reinterpret_cast<uintptr_t>(from) % 16 == 0, "cp.async of an odd address");
    PENSTOCK_CHECK(emulated_cuda::IsOnDevice(from, 16), "cp.async of memory that is not global");
  }
  std::memset(static_cast<void*>(to), 0xff, 16);
  CopiesUnderWay().push_back({inside ? from : nullptr, to});
}
inline void WaitForCopies() {
  for (const CopyUnderWay& copy : CopiesUnderWay()) {
    if (copy.from == nullptr) {
      std::memset(copy.to, 0, 16);
    } else {
      std::memcpy(copy.to, copy.from, 16);
    }
  }
  CopiesUnderWay().clear();
}

inline float Exp2(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0 : y;
}

}  // namespace penstock::kernels
