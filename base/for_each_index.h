// Distributes indices over several threads, which live as long as the work takes.
#pragma once

#include <cstddef>
#include <functional>

#include "base/result.h"

namespace penstock {

/// Calls `work` once with each of 0 … count - 1, on the calling thread and up to `threads` - 1
/// others, which run on the same CPUs. With one thread the indices come in order. After a failure
/// no more calls begin. Returns the failure of the smallest index; kOutOfMemory if `work` has
/// thrown std::bad_alloc, the one exception that it may throw.
Status ForEachIndex(size_t count, int threads, const std::function<Status(size_t)>& work);

}  // namespace penstock
