#include "kernels/cpu_parallel.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <exception>

#include "base/check.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace penstock::kernels {
namespace {

/// Tells the thread sanitizer of the order that OpenMP's barriers make: libgomp synchronises with
/// futexes, which it does not see.
void OrderAfter([[maybe_unused]] void* address) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(address);
#endif
}
void OrderBefore([[maybe_unused]] void* address) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(address);
#endif
}

/// What the threads of one region share.
struct Region {
  int parts;
  void (*body)(void*, int);
  void* context;
  std::atomic_flag failed = ATOMIC_FLAG_INIT;
  std::exception_ptr failure;

  void Run(int thread, int threads) {
    for (int part = thread; part < parts; part += threads) {
      try {
        body(context, part);
      } catch (...) {
        if (!failed.test_and_set()) failure = std::current_exception();
      }
    }
  }
};

/// This function is not instrumented, because the threads read `region` from the frame of this
/// function before any order that the sanitizer knows of.
__attribute__((no_sanitize("thread"))) void RunRegion(Region* region) {
  OrderBefore(region);
#pragma omp parallel num_threads(region->parts) default(none) firstprivate(region)
  {
    OrderAfter(region);
    region->Run(omp_get_thread_num(), omp_get_num_threads());
    OrderBefore(region);
  }
  OrderAfter(region);
}

}  // namespace

int ThreadLimit() { return omp_get_thread_limit(); }

Status CheckThreads(int threads) {
  PENSTOCK_CHECK(threads > 0);
  if (threads <= ThreadLimit()) return {};
  return MakeError(ErrorCode::kUnavailable,
                   "operators: OpenMP gives at most {} threads, not {}; raise OMP_THREAD_LIMIT or "
                   "lower compute_threads",
                   ThreadLimit(), threads);
}

ThreadCountScope::ThreadCountScope(int threads)
    : previous_(omp_get_max_threads()), previous_dynamic_(omp_get_dynamic()) {
  omp_set_num_threads(threads);
  omp_set_dynamic(0);
}

ThreadCountScope::~ThreadCountScope() {
  omp_set_num_threads(previous_);
  omp_set_dynamic(previous_dynamic_);
}

Range PartOf(uint64_t n, int part, int parts, uint64_t granularity) {
  const uint64_t units = (n + granularity - 1) / granularity;
  const auto border = [&](int index) {
    return std::min(
        n, units * static_cast<uint64_t>(index) / static_cast<uint64_t>(parts) * granularity);
  };
  return {border(part), border(part + 1)};
}

void RunParts(int parts, void (*body)(void* context, int part), void* context) {
  PENSTOCK_CHECK(parts > 0);
  Region region{parts, body, context};
  if (parts == 1) {
    region.Run(0, 1);
  } else {
    RunRegion(&region);
  }
  if (region.failure != nullptr) std::rethrow_exception(region.failure);
}

}  // namespace penstock::kernels
