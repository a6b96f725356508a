// The threads of the CPU device's operators: OpenMP's pool of the calling thread, which oneDNN uses
// as well.
//
// Work is cut into parts whose borders depend on the size and the number of parts alone, so that no
// result depends on which thread runs which part. oneDNN asks OpenMP for the number of threads and
// depends on it, so OpenMP must provide the stated number.
//
// Threads: everything here may be called from any thread that is not itself inside a parallel
// region.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/result.h"

namespace penstock::kernels {

/// How many threads OpenMP gives at most (OMP_THREAD_LIMIT).
int ThreadLimit();
/// Errors: kUnavailable where that is less than `threads`. Precondition: threads > 0.
Status CheckThreads(int threads);

/// Sets the number of threads that OpenMP, and so oneDNN, uses for this thread: exactly as many,
/// however busy the machine is (OMP_DYNAMIC). Restores both at the end. Precondition: threads <=
/// ThreadLimit().
class ThreadCountScope {
 public:
  explicit ThreadCountScope(int threads);
  ~ThreadCountScope();
  ThreadCountScope(const ThreadCountScope&) = delete;
  ThreadCountScope& operator=(const ThreadCountScope&) = delete;

 private:
  int previous_;
  int previous_dynamic_;
};

struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;

  uint64_t size() const { return end - begin; }
};

/// Part number `part` of [0, n) cut into `parts` nearly equal ranges that start on multiples of
/// `granularity`; a range may be empty. Precondition: granularity > 0.
Range PartOf(uint64_t n, int part, int parts, uint64_t granularity = 1);

/// Calls body(context, part) once for each part in [0, parts), on at most `parts` threads, and
/// returns when all are done. The first exception of a body is thrown again here.
void RunParts(int parts, void (*body)(void* context, int part), void* context);

/// The same for a callable: ParallelParts(threads, [&](int part) { … }).
template <typename Body>
void ParallelParts(int parts, Body&& body) {
  using Callable = std::remove_reference_t<Body>;
  RunParts(
      parts, [](void* context, int part) { (*static_cast<Callable*>(context))(part); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

/// Cuts [0, n) into `parts` ranges and calls body(range) for those that are not empty.
template <typename Body>
void ParallelRanges(int parts, uint64_t n, uint64_t granularity, Body&& body) {
  ParallelParts(parts, [&](int part) {
    const Range range = PartOf(n, part, parts, granularity);
    if (range.size() > 0) body(range);
  });
}

}  // namespace penstock::kernels
