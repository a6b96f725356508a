// The thread that carries out calls: in order, once, each behind its event, and all in the end.
#include "device/call_thread.h"

#include <gtest/gtest.h>

#include <latch>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "tests/device/support.h"

namespace penstock::device {
namespace {

TEST(CallThreadTest, ACallWaitsForItsEventAndTheCallsBehindItWaitForTheCall) {
  const auto first = std::make_shared<ManualEvent>();
  std::vector<int> order;
  CallThread calls("copy-out");
  calls.Add(Event(first), [&] { order.push_back(first->Reached() ? 1 : -1); });
  calls.Add(Event(), [&] { order.push_back(2); });
  first->AwaitWaiter();
  first->Fire();
  calls.Drain();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(CallThreadTest, AddingACallDoesNotWaitForIt) {
  std::latch added(1);
  bool called = false;
  CallThread calls("copy-out");
  calls.Add(Event(), [&] {
    added.wait();
    called = true;
  });
  added.count_down();
  calls.Drain();
  EXPECT_TRUE(called);
}

TEST(CallThreadTest, WhatIsLeftIsCarriedOutAtTheEnd) {
  const auto event = std::make_shared<ManualEvent>();
  std::vector<int> order;
  std::thread firing([&] {
    event->AwaitWaiter();
    event->Fire();
  });
  {
    CallThread calls("copy-out");
    for (int i = 0; i < 100; ++i) {
      calls.Add(i == 0 ? Event(event) : Event(), [&order, i] { order.push_back(i); });
    }
  }
  firing.join();
  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(CallThreadTest, WhatACallHoldsIsGoneWhenItIsDrained) {
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = held;
  const auto event = std::make_shared<ManualEvent>();
  const std::weak_ptr<ManualEvent> watched_event = event;
  event->Fire();
  CallThread calls("copy-out");
  calls.Add(Event(event), [held = std::move(held)] { EXPECT_EQ(*held, 1); });
  calls.Drain();
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(watched_event.use_count(), 1);
}

TEST(CallThreadTest, AFeederThatIsFarAheadIsHeldBackAndLosesNoCall) {
  size_t called = 0;
  CallThread calls("copy-out");
  for (size_t i = 0; i < 2 * CallThread::kMaxQueued; ++i) calls.Add(Event(), [&] { ++called; });
  calls.Drain();
  EXPECT_EQ(called, 2 * CallThread::kMaxQueued);
}

TEST(CallThreadTest, WithoutCallsThereIsNothingToWaitFor) {
  CallThread calls("copy-out");
  calls.Drain();
}

TEST(CallThreadDeathTest, ACallThatThrowsIsABug) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        CallThread calls("copy-out");
        calls.Add(Event(), [] { throw std::runtime_error("oops"); });
        calls.Drain();
      },
      "stream copy-out: a call has thrown: std::runtime_error");
}

}  // namespace
}  // namespace penstock::device
