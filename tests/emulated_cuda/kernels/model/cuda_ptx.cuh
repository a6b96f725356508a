// In place of the file of this name: what the PTX manual says that mma.m16n8k16 and ldmatrix do,
// element by element.
#pragma once

#include <bit>
#include <cstdint>

#include "base/check.h"
#include "kernels/dtype.h"
#include "kernels/model/cuda_fragments.h"
#include "tests/emulated_cuda/block.h"
#include "tests/emulated_cuda/cudart.h"

namespace penstock::kernels {

inline uint32_t PackPair(float low, float high) {
  return RoundToBFloat16(low).bits | uint32_t{RoundToBFloat16(high).bits} << 16;
}

/// Element 0 or 1 of a register.
inline float OfPair(uint32_t pair, unsigned element) {
  return ToFloat(BFloat16{static_cast<uint16_t>(pair >> (16 * element))});
}

struct MmaOperands {
  uint32_t left[4];
  uint32_t right[2];
  float sums[4];
};
inline void Mma(const MmaOperands* in, Sums* out) {
  float left[16][16], right[16][8];
  for (unsigned lane = 0; lane < 32; ++lane) {
    const unsigned group = lane / 4, two = lane % 4 * 2;
    for (unsigned i = 0; i < 2; ++i) {
      left[group][two + i] = OfPair(in[lane].left[0], i);
      left[group + 8][two + i] = OfPair(in[lane].left[1], i);
      left[group][two + 8 + i] = OfPair(in[lane].left[2], i);
      left[group + 8][two + 8 + i] = OfPair(in[lane].left[3], i);
      right[two + i][group] = OfPair(in[lane].right[0], i);
      right[two + 8 + i][group] = OfPair(in[lane].right[1], i);
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

inline void MultiplyAdd(const Left& left, const RightPair& right, int half, Sums& sums) {
  MmaOperands operands{};
  for (int i = 0; i < 4; ++i) operands.left[i] = left.pairs[i];
  for (int i = 0; i < 2; ++i) operands.right[i] = right.pairs[2 * half + i];
  for (int i = 0; i < 4; ++i) operands.sums[i] = sums.values[i];
  sums = emulated_cuda::OfWarp<MmaOperands, Sums, Mma>("mma", operands);
}

struct Matrices {
  uint32_t pairs[4];
};
template <bool kTransposed>
void LoadEach(const BFloat16* const* rows, Matrices* out) {
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    const BFloat16* const* const row = rows + 8 * matrix;
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned group = lane / 4, two = lane % 4 * 2;
      const BFloat16 low = kTransposed ? row[two][group] : row[group][two];
      const BFloat16 high = kTransposed ? row[two + 1][group] : row[group][two + 1];
      out[lane].pairs[matrix] = low.bits | uint32_t{high.bits} << 16;
    }
  }
}
template <bool kTransposed>
void LoadFour(const BFloat16* row, uint32_t (&pairs)[4]) {
  PENSTOCK_CHECK(reinterpret_cast<uintptr_t>(row) % 16 == 0, "ldmatrix of an odd address");
  PENSTOCK_CHECK(!emulated_cuda::IsOnDevice(row, 16), "ldmatrix of memory that is not shared");
  const auto loaded =
      emulated_cuda::OfWarp<const BFloat16*, Matrices, LoadEach<kTransposed>>("ldmatrix", row);
  for (int i = 0; i < 4; ++i) pairs[i] = loaded.pairs[i];
}

inline void LoadMatrices(const BFloat16* row, uint32_t (&pairs)[4]) { LoadFour<false>(row, pairs); }
inline void LoadMatricesTransposed(const BFloat16* row, uint32_t (&pairs)[4]) {
  LoadFour<true>(row, pairs);
}

}  // namespace penstock::kernels
