// Copies by several threads.
#include "front/parallel_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace penstock::front {
namespace {

constexpr size_t kMib = 1 << 20;

TEST(CopyAll, CopiesEveryByteOfEveryRangeAndNoOther) {
  for (const int threads : {0, 1, 2, 9}) {
    std::vector<std::byte> from(8 * kMib);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(1 + i % 251);
    std::vector<std::byte> to(from.size());
    std::vector<std::byte> expected(from.size());
    std::vector<Copy> copies;
    size_t begin = 3;
    for (const size_t size : {size_t{1}, size_t{0}, kMib - 1, kMib, 3 * kMib + 5}) {
      const std::span<const std::byte> range = std::span(from).subspan(begin, size);
      copies.push_back({to.data() + begin, range});
      std::ranges::copy(range, expected.begin() + static_cast<ptrdiff_t>(begin));
      begin += size + 7;
    }
    CopyAll(copies, threads);
    EXPECT_TRUE(to == expected) << threads;
  }
}

TEST(ForEachPart, GivesEveryElementToOnePart) {
  for (const uint64_t elements : {0, 1, 256 << 10, 999'999}) {
    for (const int threads : {1, 3}) {
      std::vector<std::atomic<int>> seen(elements);
      ForEachPart(elements, threads, [&](uint64_t begin, uint64_t count) {
        for (uint64_t i = begin; i < begin + count; ++i) ++seen[i];
      });
      EXPECT_TRUE(std::ranges::all_of(seen, [](const auto& times) { return times == 1; }))
          << elements << " elements, " << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace penstock::front
