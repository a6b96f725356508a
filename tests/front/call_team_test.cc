// Calls of which several threads do a share each.
#include "front/call_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace penstock::front {
namespace {

/// An event that the test reaches.
class Gate final : public device::Event::State {
 public:
  bool Reached() const override { return open_; }
  void Wait() const override {
    ++waits_;
    while (!open_) std::this_thread::yield();
  }
  void Open() { open_ = true; }
  int waits() const { return waits_; }

 private:
  std::atomic<bool> open_ = false;
  mutable std::atomic<int> waits_ = 0;
};

TEST(CallTeamTest, EachThreadDoesItsShareOfEveryCallInOrderAndCallsAreDoneInOrder) {
  constexpr int kCalls = 2000;
  for (const int threads : {1, 2, 4}) {
    std::vector<std::vector<int>> shares(static_cast<size_t>(threads));  // each thread has its own
    std::vector<int> done;                                               // of one thread at a time
    {
      CallTeam team("team", threads);
      for (int call = 0; call < kCalls; ++call) {
        team.Add(
            {},
            [&, call](const CallTeam::Share& share) {
              EXPECT_EQ(share.of, threads);
              shares[share.number].push_back(call);
              if ((call + static_cast<int>(share.number)) % 7 == 0) std::this_thread::yield();
            },
            [&, call] { done.push_back(call); });
      }
      team.Drain();
      ASSERT_EQ(done.size(), kCalls);
    }
    for (int call = 0; call < kCalls; ++call) EXPECT_EQ(done[static_cast<size_t>(call)], call);
    for (const std::vector<int>& share : shares) EXPECT_EQ(share, done);
  }
}

TEST(CallTeamTest, NoThreadWaitsForTheShareOfAnotherOne) {
  CallTeam team("team", 2);
  std::atomic<bool> later = false;
  std::atomic<int> done = 0;
  // The first thread's share of the first call ends after the second one's of the second call.
  team.Add(
      {},
      [&](const CallTeam::Share& share) {
        while (share.number == 0 && !later) std::this_thread::yield();
      },
      [&] { ++done; });
  team.Add(
      {},
      [&](const CallTeam::Share& share) {
        if (share.number == 1) {
          EXPECT_EQ(done, 0);
          later = true;
        }
      },
      [&] { ++done; });
  team.Drain();
  EXPECT_EQ(done, 2);
}

TEST(CallTeamTest, ACallWaitsForItsEventForWhichOneThreadWaits) {
  auto gate = std::make_shared<Gate>();
  CallTeam team("team", 3);
  std::atomic<int> before = 0;
  std::atomic<int> behind = 0;
  team.Add(
      {}, [&](const CallTeam::Share&) { ++before; }, [] {});
  team.Add(
      device::Event(gate), [&](const CallTeam::Share&) { ++behind; }, [] {});
  while (before < 3 || gate->waits() == 0) std::this_thread::yield();
  EXPECT_EQ(behind, 0);
  gate->Open();
  team.Drain();
  EXPECT_EQ(behind, 3);
  EXPECT_EQ(gate->waits(), 1);
}

TEST(CallTeamTest, WhatIsLeftIsCarriedOutBeforeItEnds) {
  auto gate = std::make_shared<Gate>();
  int done = 0;
  std::thread opens([&] {
    while (gate->waits() == 0) std::this_thread::yield();
    gate->Open();
  });
  {
    CallTeam team("team", 2);
    for (int i = 0; i < 3; ++i) {
      team.Add(
          i == 0 ? device::Event(gate) : device::Event(), [](const CallTeam::Share&) {},
          [&] { ++done; });
    }
  }
  EXPECT_EQ(done, 3);
  opens.join();
}

}  // namespace
}  // namespace penstock::front
