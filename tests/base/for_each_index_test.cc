// Every index once, on several threads, and the first failure.
#include "base/for_each_index.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <new>
#include <vector>

#include "tests/deadline.h"

namespace penstock {
namespace {

TEST(ForEachIndexTest, EachIndexIsVisitedOnce) {
  for (const int threads : {0, 1, 2, 5, 200}) {
    std::array<std::atomic<int>, 100> visits{};
    EXPECT_TRUE(ForEachIndex(visits.size(), threads, [&](size_t i) {
                  ++visits.at(i);
                  return Status();
                }).ok());
    for (const auto& count : visits) EXPECT_EQ(count, 1);
  }
  EXPECT_TRUE(ForEachIndex(0, 4, [](size_t) { return Status(); }).ok());
}

TEST(ForEachIndexTest, OneThreadGoesInOrder) {
  std::vector<size_t> order;
  ASSERT_TRUE(ForEachIndex(4, 1, [&](size_t i) {
                order.push_back(i);
                return Status();
              }).ok());
  EXPECT_EQ(order, (std::vector<size_t>{0, 1, 2, 3}));
}

TEST(ForEachIndexTest, SeveralThreadsWorkAtTheSameTime) {
  std::barrier met(3);  // never passed when fewer than three are at work
  EXPECT_TRUE(ForEachIndex(6, 3, [&](size_t) {
                met.arrive_and_wait();
                return Status();
              }).ok());
}

TEST(ForEachIndexTest, TheFailureOfTheSmallestIndexIsReturnedThoughItComesLater) {
  std::atomic<bool> later_failed = false;
  std::atomic<size_t> begun = 0;
  const Status failed = ForEachIndex(1000, 2, [&](size_t i) -> Status {
    ++begun;
    if (i == 5) {
      EXPECT_TRUE(BecomesTrue([&] { return later_failed.load(); }));
      return MakeError(ErrorCode::kIo, "five");
    }
    if (i == 6) {
      later_failed = true;
      return MakeError(ErrorCode::kIo, "six");
    }
    return {};
  });
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().message, "five");
  EXPECT_EQ(begun, 7U) << "no more begin after a failure";
}

TEST(ForEachIndexTest, ALackOfMemoryIsAFailure) {
  for (const int threads : {1, 3}) {
    const Status failed =
        ForEachIndex(8, threads, [](size_t) -> Status { throw std::bad_alloc(); });
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().code, ErrorCode::kOutOfMemory);
  }
}

}  // namespace
}  // namespace penstock
