// Whether floating-point arithmetic of this thread keeps denormal numbers.
//
// A processor can be told to take them for zero (x86: FTZ and DAZ in MXCSR; Arm: FZ in FPCR), and a
// library built with -ffast-math tells it so when it is loaded. New threads inherit the setting.
#pragma once

namespace penstock {

/// Tries it out: true if denormal results and operands are kept by the calling thread.
bool KeepsDenormals();

}  // namespace penstock
