// Which context of CUDA's driver a call works in: that of its stream, whatever the calling thread
// has. A thread of torch's autograd has none before it first calls CUDA's runtime.
//
// Threads: any.
#pragma once

#include <utility>

#include "base/result.h"
#include "front/cuda_driver.h"

namespace penstock::front {

/// Whether a stream is one of those that belong to no context, and mean that of the calling thread.
bool IsDefaultStream(CuStream stream);

/// Returns the context of a stream; of the default streams that of the calling thread, which may be
/// null. Errors: of the driver.
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
  /// What the driver answers changes nothing: it may be gone already, when the process ends.
  ~ContextScope();

 private:
  ContextScope(const CudaDriver* driver, CuContext before) : driver_(driver), before_(before) {}

  const CudaDriver* driver_;  ///< null if the context was current already
  CuContext before_;
};

}  // namespace penstock::front
