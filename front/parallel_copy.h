// Copies by several threads: during a call that transfers weights or gradients, the caller's
// compute threads are idle.
//
// Threads: any; the functions return when all is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace penstock::front {

/// This many threads saturate memory bandwidth.
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
