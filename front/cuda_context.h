// The context of CUDA's driver that a call uses: that of its stream, not that of the calling
// thread. A thread of torch's autograd has no context before its first call of CUDA's runtime.
//
// Threads: any.
#pragma once

#include <utility>

#include "base/result.h"
#include "front/cuda_driver.h"

namespace penstock::front {

/// Whether a stream belongs to no context, and so means the context of the calling thread.
bool IsDefaultStream(CuStream stream);

/// Returns the context of a stream; for default streams the calling thread's, which may be null.
/// Errors: of the driver.
Result<CuContext> ContextOf(const CudaDriver& driver, CuStream stream);

/// Makes a context the calling thread's current one until the object ends; then the one before, or
/// none, is current again. The driver outlives it.
class ContextScope {
 public:
  /// Errors: of the driver.
  static Result<ContextScope> Enter(const CudaDriver& driver, CuContext context);
  ContextScope(ContextScope&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)), before_(other.before_) {}
  ContextScope& operator=(ContextScope&&) = delete;
  /// Ignores the driver's answer: at the end of the process the driver may be gone already.
  ~ContextScope();

 private:
  ContextScope(const CudaDriver* driver, CuContext before) : driver_(driver), before_(before) {}

  const CudaDriver* driver_;  ///< null if the context was current already
  CuContext before_;
};

}  // namespace penstock::front
