// What has arrived on all connections is heard before anything is judged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "comm/peers.h"
#include "comm/star_job.h"
#include "comm/watch.h"
#include "tests/deadline.h"

namespace penstock::comm {
namespace {

using std::chrono::steady_clock;
using testing::HasSubstr;

/// The two ends of a connection.
std::array<UniqueFd, 2> MakePair() {
  int ends[2] = {-1, -1};
  PENSTOCK_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

/// Sends as much as the socket takes.
void Send(const UniqueFd& to, const std::string& bytes) {
  static_cast<void>(::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
}

TEST(PeersTest, AllThatIsReadyIsReturnedHoweverManyItAre) {
  constexpr uint32_t kPeers = 200;
  const UniqueFd also(::eventfd(1, EFD_CLOEXEC));
  Peers peers = Peers::Create(also.get()).value();
  std::vector<UniqueFd> others;
  for (uint32_t peer = 0; peer < kPeers; ++peer) {
    auto [mine, other] = MakePair();
    Send(other, "a word");
    ASSERT_TRUE(peers.Add(peer, Connection(std::move(mine), kMaxPayload)).ok());
    others.push_back(std::move(other));
  }
  const Peers::Ready ready = peers.Wait(steady_clock::now());
  EXPECT_EQ(ready.peers.size(), kPeers);
  EXPECT_TRUE(ready.also);
}

/// Rank 0 of three, whose connections end in the test.
struct Hosted {
  std::unique_ptr<Job> job;
  std::vector<UniqueFd> ranks;  ///< the ends of ranks 1 and 2
};

Hosted MakeHost() {
  Hosted hosted;
  MeetingPoint meeting{.world = {.size = 3, .rank = 0, .local_size = 3, .local_rank = 0},
                       .members = {{"host", 1}, {"host", 2}, {"host", 3}}};
  for (int rank = 1; rank < 3; ++rank) {
    auto [mine, other] = MakePair();
    meeting.connections.emplace_back(std::move(mine), kMaxPayload);
    hosted.ranks.push_back(std::move(other));
  }
  hosted.job = StarJob::Start(std::move(meeting), {}).value();
  return hosted;
}

/// More heartbeats than are heard in a moment.
std::string ManyHeartbeats() {
  const std::string one =
      *EncodeMessage({.type = MessageType::kHeartbeat, .text = EncodeProgress({})});
  std::string many;
  while (many.size() < (128 << 10)) many += one;
  return many;
}

std::string Failure(const char* why) {
  Message message{.type = MessageType::kFail};
  SetStatus(Error{ErrorCode::kOutOfSpace, why}, &message);
  return *EncodeMessage(message);
}

TEST(StarJobTest, WhatAnotherRankHasSentBeforeAFailureOfThisOneIsTheReason) {
  const std::string heartbeats = ManyHeartbeats();
  // Many at once: their threads wait for processors while both failures come.
  std::vector<Hosted> all;
  for (int i = 0; i < 50; ++i) all.push_back(MakeHost());
  for (const Hosted& hosted : all) {
    Send(hosted.ranks[1], heartbeats);
    Send(hosted.ranks[0], Failure("the drive is full"));
    hosted.job->Fail(Error{ErrorCode::kUnavailable, "rank 1 has ended"});
  }
  for (const Hosted& hosted : all) {
    ASSERT_TRUE(BecomesTrue([&] { return !hosted.job->status().ok(); }));
    EXPECT_THAT(hosted.job->status().error().message, HasSubstr("rank 1 (host host): the drive"));
  }
}

}  // namespace
}  // namespace penstock::comm
