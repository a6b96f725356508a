// What tests ask of the emulated cuDNN.
#pragma once

#include "base/units.h"

namespace penstock::emulated_cuda {

/// Whether there is a cuDNN from now on, and how much memory backward takes beyond what it took in
/// 9.19.
void SetCudnn(bool there, Bytes more = {});

}  // namespace penstock::emulated_cuda
