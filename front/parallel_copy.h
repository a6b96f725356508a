// Copies by several threads: while a call hands weights or gradients over, the threads that compute
// for its caller have nothing to do.
//
// Threads: any; the functions return when all is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace penstock::front {

/// So many threads use up the bandwidth of memory.
inline constexpr int kMaxMemoryThreads = 4;

struct Copy {
  std::byte* to = nullptr;
  std::span<const std::byte> from;
};

/// Copies all of them, with up to `threads` threads if they are large.
void CopyAll(std::span<const Copy> copies, int threads);

/// Calls `work` with parts [begin, begin + count) of [0, elements), with up to `threads` threads if
/// there are many.
void ForEachPart(uint64_t elements, int threads,
                 const std::function<void(uint64_t begin, uint64_t count)>& work);

}  // namespace penstock::front
