// Work on the elements of a row, by several threads that live as long as it takes.
#pragma once

#include <cstddef>
#include <functional>

#include "base/result.h"

namespace penstock {

/// Calls `work` with 0 … count - 1, each once, on the calling thread and up to `threads` - 1
/// others, which run where it does; in order where that makes one thread. After a failure no more
/// begin. The failure of the smallest index; kOutOfMemory where `work` has thrown std::bad_alloc,
/// the one exception that it may throw.
Status ForEachIndex(size_t count, int threads, const std::function<Status(size_t)>& work);

}  // namespace penstock
