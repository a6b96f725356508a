// Threads of the time before the first step, when nothing is computed and all CPUs are free: who
// fills, reads and hashes tiles then, and takes the pages of host memory.
#pragma once

#include <cstddef>
#include <span>

namespace penstock::zero {

/// Returns as many threads as CPUs are left to this process, by its affinity and the quota of its
/// container: 1 or more.
int StartThreads();

/// Has the system give the pages of memory that nobody has written yet, by so many threads: who
/// writes or pins it later waits for no page. What it holds stays as it is. Advice: what the system
/// does not give now it gives, or refuses, at the first write.
void TakePages(std::span<std::byte> memory, int threads);

}  // namespace penstock::zero
