#include "front/parallel_copy.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/for_each_index.h"
#include "base/units.h"

namespace penstock::front {
namespace {

/// Copying this much takes some hundred microseconds, several times the start of a thread.
constexpr Bytes kPart = 1_MiB;
constexpr uint64_t kPartElements = 256 << 10;

void ForEach(size_t parts, int threads, const std::function<void(size_t)>& work) {
  const Status done = ForEachIndex(parts, std::min(threads, kMaxMemoryThreads), [&](size_t i) {
    work(i);
    return Status();
  });
  PENSTOCK_CHECK(done.ok(), "{}", done.error().message);
}

}  // namespace

void CopyAll(std::span<const Copy> copies, int threads) {
  std::vector<Copy> parts;
  size_t bytes = 0;
  for (const Copy& copy : copies) {
    bytes += copy.from.size();
    for (size_t begin = 0; begin < copy.from.size(); begin += kPart.value) {
      const size_t size = std::min(copy.from.size() - begin, size_t{kPart.value});
      parts.push_back({copy.to + begin, copy.from.subspan(begin, size)});
    }
  }
  const size_t enough = bytes / kPart.value + 1;
  ForEach(parts.size(), static_cast<int>(std::min<size_t>(static_cast<size_t>(threads), enough)),
          [&](size_t i) { std::memcpy(parts[i].to, parts[i].from.data(), parts[i].from.size()); });
}

void ForEachPart(uint64_t elements, int threads,
                 const std::function<void(uint64_t begin, uint64_t count)>& work) {
  ForEach((elements + kPartElements - 1) / kPartElements, threads, [&](size_t i) {
    const uint64_t begin = i * kPartElements;
    work(begin, std::min(kPartElements, elements - begin));
  });
}

}  // namespace penstock::front
