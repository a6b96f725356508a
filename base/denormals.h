// Whether floating-point arithmetic of this thread keeps denormal numbers.
//
// A processor can be told to treat them as zero (x86: FTZ and DAZ in MXCSR; Arm: FZ in FPCR), and a
// library built with -ffast-math tells it so when it is loaded. New threads inherit the setting.
#pragma once

namespace penstock {

/// Returns whether the calling thread keeps denormal results and operands, by computing with some.
bool KeepsDenormals();

}  // namespace penstock
