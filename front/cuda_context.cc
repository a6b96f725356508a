#include "front/cuda_context.h"

#include <cstdint>

namespace penstock::front {
namespace {

/// CU_STREAM_LEGACY and CU_STREAM_PER_THREAD, which belong to no context, as the null stream does.
constexpr uintptr_t kLastDefaultStream = 2;

Result<CuContext> CurrentContext(const CudaDriver& driver) {
  CuContext context = nullptr;
  PENSTOCK_TRY(driver.Check(driver.ctx_get_current(&context), "looking for the current context"));
  return context;
}

}  // namespace

bool IsDefaultStream(CuStream stream) {
  return reinterpret_cast<uintptr_t>(stream) <= kLastDefaultStream;
}

Result<CuContext> ContextOf(const CudaDriver& driver, CuStream stream) {
  if (IsDefaultStream(stream)) return CurrentContext(driver);
  CuContext context = nullptr;
  PENSTOCK_TRY(driver.Check(driver.stream_get_context(stream, &context),
                            "looking for the context of a stream"));
  return context;
}

Result<ContextScope> ContextScope::Enter(const CudaDriver& driver, CuContext context) {
  PENSTOCK_ASSIGN(CuContext before, CurrentContext(driver));
  if (before == context) return ContextScope(nullptr, before);
  PENSTOCK_TRY(driver.Check(driver.ctx_set_current(context), "making a context current"));
  return ContextScope(&driver, before);
}

ContextScope::~ContextScope() {
  if (driver_ != nullptr) static_cast<void>(driver_->ctx_set_current(before_));
}

}  // namespace penstock::front
