#include "base/shared_library.h"

#include <dlfcn.h>

namespace penstock {

Result<SharedLibrary> SharedLibrary::Load(const std::string& soname, const std::string& need,
                                          const std::string& advice) {
  void* const handle = ::dlopen(soname.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return SharedLibrary(soname, handle);
  const char* const why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc's is a thread's own
  return MakeError(ErrorCode::kUnavailable, "{}: {}; {}", need, why, advice);
}

void* SharedLibrary::Address(const char* name) const { return ::dlsym(handle_, name); }

}  // namespace penstock
