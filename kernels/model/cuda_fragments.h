// The operands of a warp's matrix product of 16 x 16 by 16 x 8 in bf16 or fp16 with fp32 sums
// (PTX: mma.m16n8k16), as each lane holds its part of them.
//
// Who holds what, with g = lane / 4 and t = lane % 4:
//   sums [16][8]   0, 1: row g, columns 2t, 2t + 1    2, 3: row g + 8, the same columns
//   left [16][16]  registers of two elements each: row g, columns 2t, 2t + 1; row g + 8, the same;
//                  row g, columns 2t + 8, 2t + 9; row g + 8, the same
//   right [16][8]  column g, rows 2t, 2t + 1; column g, rows 2t + 8, 2t + 9
#pragma once

#include <cstdint>

namespace penstock::kernels {

struct Sums {
  float values[4] = {};
};
struct Left {
  uint32_t pairs[4];
};
/// Two right operands: columns 0 … 7 and 8 … 15.
struct RightPair {
  uint32_t pairs[4];
};

}  // namespace penstock::kernels
