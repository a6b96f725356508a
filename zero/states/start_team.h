// Threads before the first step, when nothing is computed and all CPUs are free: they fill, read
// and hash tiles, and touch the pages of host memory.
#pragma once

#include <cstddef>
#include <span>

namespace penstock::zero {

/// Returns as many threads as CPUs are left to this process, by its affinity and the quota of its
/// container: 1 or more.
int StartThreads();

/// Makes the system allocate the untouched pages of memory, with several threads, so that later
/// writes or pinning wait for no page. Contents do not change. Advice: a page that the system does
/// not give now it gives, or refuses, at the first write.
void TakePages(std::span<std::byte> memory, int threads);

}  // namespace penstock::zero
