// Whether floating-point arithmetic of this thread keeps denormal numbers.
//
// A processor can be set to treat them as zero (x86: FTZ and DAZ in MXCSR; Arm: FZ in FPCR), and a
// library built with -ffast-math does that when it is loaded. New threads inherit the setting.
#pragma once

#include <cfenv>

namespace penstock {

/// Returns whether the calling thread keeps denormal results and operands, by computing with some.
bool KeepsDenormals();

/// While it exists, the calling thread and the threads that it starts compute as they do in a new
/// program: denormals are kept, results are rounded to nearest, and nothing traps. Then the thread
/// computes as before. For calls from programs that choose otherwise.
class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { std::fesetenv(&before_); }
  DefaultArithmetic(const DefaultArithmetic&) = delete;
  DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

 private:
  std::fenv_t before_{};
};

}  // namespace penstock
