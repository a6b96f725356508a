// A job beside ranks that do what no rank of ours would.
#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/environment.h"
#include "comm/job.h"
#include "comm/rendezvous.h"
#include "tests/comm/job_support.h"
#include "tests/temp_folder.h"

namespace penstock::comm {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

/// A rank that has joined a job and does what no rank of ours would.
class WrongRank {
 public:
  WrongRank(const MeetingPlace& place, uint32_t rank)
      : meeting_(Meet(ReadLaunch(place.EnvironmentOf(rank)).value(), seconds(60)).value()) {}

  void Say(const Message& message) { connection().Send(EncodeMessage(message)); }
  void Send(const std::string& bytes) {
    connection().Send(std::make_shared<const std::string>(bytes));
  }
  /// Waits for the end that rank 0 tells of.
  std::optional<Message> AwaitEnd() {
    while (WaitFor(connection().descriptor(), POLLIN, steady_clock::now() + seconds(60))) {
      const bool open = connection().Receive().open;
      while (std::optional<Message> message = connection().arrived().Next().value()) {
        if (message->type == MessageType::kEnd) return message;
      }
      if (!open) break;
    }
    return {};
  }

 private:
  Connection& connection() { return meeting_.connections.front(); }

  MeetingPoint meeting_;
};

/// Rank 0 of two, beside a rank that does `wrong`. Returns what rank 0's Agree returns.
template <typename Wrong>
Status BesideAWrongRank(const Wrong& wrong, const JobOptions& options = {}) {
  const MeetingPlace place(2);
  const std::vector<Status> outcomes = ForEachRank(2, [&](uint32_t rank) {
    if (rank == 0) return Job::Join(place.EnvironmentOf(0), options).value()->Agree({});
    WrongRank one(place, 1);
    wrong(&one);
    return Status();
  });
  return outcomes[0];
}

TEST(WrongRankTest, ARankThatDoesNotAnswerIsNamed) {
  const Status outcome = BesideAWrongRank(
      [](WrongRank* rank) {
        const std::optional<Message> end = rank->AwaitEnd();  // and has said nothing
        ASSERT_TRUE(end.has_value());
        EXPECT_TRUE(FailsWith(StatusOf(*end), ErrorCode::kUnavailable, {"rank 1", "for 2 s"}));
      },
      {.timeouts = {.heartbeat = seconds(2)}});
  EXPECT_TRUE(
      FailsWith(outcome, ErrorCode::kUnavailable, {"rank 1 (host", "has not answered for 2 s"}));
}

TEST(WrongRankTest, WhatIsNoMessageEndsTheJobAndNamesTheSender) {
  const std::vector<std::string> wrong = {
      std::string(100, 'x'), EncodeMessage({})->substr(0, 8) + "\xFF\xFF\xFF\xFF",
      *EncodeMessage({.type = MessageType::kHeartbeat, .text = "no progress"})};
  for (const std::string& bytes : wrong) {
    const Status outcome = BesideAWrongRank([&](WrongRank* rank) {
      rank->Send(bytes);
      EXPECT_TRUE(rank->AwaitEnd().has_value());
    });
    EXPECT_TRUE(FailsWith(outcome, ErrorCode::kCorruption, {"rank 1"}));
  }
}

TEST(WrongRankTest, MessagesThatARankMayNotSendEndTheJob) {
  for (const MessageType type : {MessageType::kHello, MessageType::kWelcome, MessageType::kStart,
                                 MessageType::kReply, MessageType::kFail, MessageType::kVote}) {
    const Status outcome = BesideAWrongRank([&](WrongRank* rank) {
      rank->Say({.type = type, .number = 99, .b = 99});
      EXPECT_TRUE(rank->AwaitEnd().has_value());
    });
    EXPECT_TRUE(FailsWith(outcome, ErrorCode::kUnavailable, {"rank 1 (host"}));
  }
}

/// Rank 1 of two, beside a rank 0 that says `message` when all have joined.
Status BesideAWrongRankZero(const Message& message) {
  const Listener listener = Listen(0, true).value();
  const Variables variables = {{"RANK", "1"},
                               {"WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "127.0.0.1"},
                               {"MASTER_PORT", std::to_string(listener.port)}};
  const std::vector<Status> outcomes = ForEachRank(2, [&](uint32_t rank) {
    if (rank == 1) return Job::Join(EnvironmentOf(variables)).value()->Agree({});
    const Launch launch = {.size = 2, .rank = 0};
    MeetingPoint meeting = HostMeeting(launch, {&listener, 1}, seconds(60)).value();
    Connection& connection = meeting.connections.front();
    connection.Send(EncodeMessage(message));
    while (WaitFor(connection.descriptor(), POLLIN, steady_clock::now() + seconds(60)) &&
           connection.Receive().open) {
    }
    return Status();
  });
  return outcomes[1];
}

TEST(WrongRankTest, AWrongRankZeroEndsTheOthers) {
  EXPECT_TRUE(FailsWith(BesideAWrongRankZero({.type = MessageType::kReply, .number = 12345}),
                        ErrorCode::kUnavailable, {"has not asked"}));
  EXPECT_TRUE(FailsWith(BesideAWrongRankZero({.type = MessageType::kHello}),
                        ErrorCode::kUnavailable, {"rank 0"}));
  EXPECT_TRUE(FailsWith(BesideAWrongRankZero({.type = MessageType::kEnd, .number = 77}),
                        ErrorCode::kUnavailable, {"rank 0 has ended the job"}));
  EXPECT_TRUE(FailsWith(BesideAWrongRankZero({.type = MessageType::kEnd,
                                              .number = static_cast<uint64_t>(EndKind::kVerdict),
                                              .a = 1 + static_cast<uint64_t>(ErrorCode::kIo),
                                              .text = "said so"}),
                        ErrorCode::kIo, {"said so"}));
}

}  // namespace
}  // namespace penstock::comm
