// Elements from one dtype to another, on vectors (Highway, best instruction set at run time).
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace penstock::kernels {

/// out[i] = in[i] in another dtype, rounded to nearest even. NaN and infinity stay what they are;
/// what fp16 cannot hold becomes infinite. No pointer needs alignment. Single-threaded.
void ConvertElements(DType in_dtype, const void* in, DType out_dtype, void* out, uint64_t n);

}  // namespace penstock::kernels
