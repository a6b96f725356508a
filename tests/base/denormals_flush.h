// The processor's ways of taking denormal numbers for zero, for tests of who notices.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace penstock {

#if defined(__x86_64__)
inline constexpr uint64_t kFlushes[] = {0x8000, 0x0040};  // MXCSR: results (FTZ), operands (DAZ)
inline uint64_t FloatControl() { return _mm_getcsr(); }
inline void SetFloatControl(uint64_t value) { _mm_setcsr(static_cast<unsigned>(value)); }
#elif defined(__aarch64__)
inline constexpr uint64_t kFlushes[] = {uint64_t{1} << 24};  // FPCR: both (FZ)
inline uint64_t FloatControl() {
  uint64_t value = 0;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
inline void SetFloatControl(uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#endif

/// Lets the calling thread, and the threads it starts, flush denormals in one of the ways.
class DenormalsFlush {
 public:
  explicit DenormalsFlush(uint64_t way) : before_(FloatControl()) {
    SetFloatControl(before_ | way);
  }
  ~DenormalsFlush() { SetFloatControl(before_); }
  DenormalsFlush(const DenormalsFlush&) = delete;
  DenormalsFlush& operator=(const DenormalsFlush&) = delete;

 private:
  uint64_t before_;
};

}  // namespace penstock
