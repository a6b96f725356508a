// Ranks meet over sockets of this machine; what others may send to rank 0 meanwhile; who is
// missing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/rendezvous.h"
#include "tests/comm/job_support.h"
#include "tests/temp_folder.h"

namespace penstock::comm {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr seconds kEnough{60};

/// A launch of ranks that meet at a listener that the test holds.
Launch At(const Listener& listener, uint32_t rank, uint32_t size) {
  return {.size = size,
          .rank = rank,
          .endpoints = {{"127.0.0.1", listener.port}},
          .port_advice = "advice",
          .run = "a run"};
}

/// One rank's outcome; rank 0 is the listener's.
Result<MeetingPoint> Come(const Listener& listener, const Launch& launch,
                          seconds timeout = kEnough) {
  if (launch.rank == 0) return HostMeeting(launch, {&listener, 1}, timeout);
  return VisitMeeting(launch, timeout);
}

/// A connection to a listener of no rank.
class Stranger {
 public:
  explicit Stranger(const Listener& listener)
      : socket_(Connect({"127.0.0.1", listener.port}, steady_clock::now() + kEnough).value()) {}

  void Send(const std::string& bytes) {
    PENSTOCK_CHECK(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
                   static_cast<ssize_t>(bytes.size()));
  }
  void Say(const Message& message) { Send(*EncodeMessage(message)); }
  /// Waits until the other side has closed.
  testing::AssertionResult IsClosed() {
    char byte = 0;
    while (true) {
      if (!WaitFor(socket_.get(), POLLIN, steady_clock::now() + kEnough)) {
        return testing::AssertionFailure() << "it stays open";
      }
      if (::recv(socket_.get(), &byte, 1, 0) <= 0) return testing::AssertionSuccess();
    }
  }
  /// Waits for a message.
  std::optional<Message> Hear() {
    MessageParser parser(kMaxPayload);
    char byte = 0;
    while (WaitFor(socket_.get(), POLLIN, steady_clock::now() + kEnough) &&
           ::recv(socket_.get(), &byte, 1, 0) == 1) {
      parser.Add({&byte, 1});
      std::optional<Message> message = parser.Next().value();
      if (message.has_value()) return message;
    }
    return {};
  }
  int descriptor() const { return socket_.get(); }

 private:
  UniqueFd socket_;
};

Message Hello(uint64_t rank, uint64_t size, const std::string& run = "a run",
              const std::string& token = "") {
  return {.type = MessageType::kHello,
          .number = rank,
          .a = size,
          .b = 4711,
          .key = run,
          .text = EncodeGreeting({"elsewhere", token})};
}

constexpr const char* kToken = "0123456789abcdef";

/// A launch of ranks that know a secret.
Launch WithToken(const Listener& listener, uint32_t rank, uint32_t size,
                 const std::string& token = kToken) {
  Launch launch = At(listener, rank, size);
  launch.run = "name of the run";
  launch.token = token;
  return launch;
}

TEST(RendezvousTest, AllRanksLearnAllMembers) {
  const Listener listener = Listen(0, true).value();
  const std::vector<Result<MeetingPoint>> meetings =
      ForEachRank(4, [&](uint32_t rank) { return Come(listener, At(listener, rank, 4)); });
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const MeetingPoint& meeting = meetings[rank].value();
    EXPECT_EQ(meeting.world, (World{.size = 4, .rank = rank, .local_size = 4, .local_rank = rank}));
    EXPECT_EQ(meeting.members, meetings[0].value().members);
    EXPECT_EQ(meeting.members[rank].pid, static_cast<uint64_t>(::getpid()));
    EXPECT_EQ(meeting.members[rank].host, HostName());
    EXPECT_EQ(meeting.connections.size(), rank == 0 ? 3U : 1U);
  }
}

TEST(RendezvousTest, RanksThatAreMissingAreNamedByAllThatAreThere) {
  const Listener listener = Listen(0, true).value();
  const std::vector<Result<MeetingPoint>> meetings = ForEachRank(
      2, [&](uint32_t rank) { return Come(listener, At(listener, rank, 4), seconds(3)); });
  for (const Result<MeetingPoint>& meeting : meetings) {
    EXPECT_TRUE(
        FailsWith(meeting, ErrorCode::kUnavailable, {"ranks 2, 3 of 4 did not join within 3 s"}));
  }
}

TEST(RendezvousTest, ARankThatJoinedInTimeCountsThoughRankZeroReadsItLate) {
  const Listener listener = Listen(0, true).value();
  Stranger one(listener);
  one.Say(Hello(1, 2));
  one.Say({.type = MessageType::kJoined});
  const Result<MeetingPoint> meeting = Come(listener, At(listener, 0, 2), seconds(0));
  EXPECT_TRUE(meeting.ok()) << meeting.error().message;
}

TEST(RendezvousTest, ARankThatDoesNotReachRankZeroSaysWhereItTried) {
  std::optional<Listener> listener = Listen(0, true).value();
  const Launch launch = At(*listener, 1, 2);
  listener.reset();
  EXPECT_TRUE(FailsWith(VisitMeeting(launch, seconds(1)), ErrorCode::kUnavailable,
                        {"rank 1 of 2 did not reach rank 0 within 1 s",
                         "127.0.0.1:" + std::to_string(launch.endpoints[0].port)}));
}

TEST(RendezvousTest, ARankMayComeBeforeRankZero) {
  std::optional<Listener> listener = Listen(0, true).value();
  const std::vector<Launch> launches = {At(*listener, 0, 2), At(*listener, 1, 2)};
  listener.reset();
  const std::vector<Result<MeetingPoint>> meetings = ForEachRank(2, [&](uint32_t rank) {
    if (rank == 0) {
      const Endpoint& there = launches[0].endpoints[0];
      EXPECT_FALSE(Connect(there, steady_clock::now() + kEnough).ok());
    }
    return Meet(launches[rank], kEnough);
  });
  EXPECT_TRUE(meetings[0].ok()) << meetings[0].error().message;
  EXPECT_TRUE(meetings[1].ok()) << meetings[1].error().message;
}

TEST(RendezvousTest, ATakenPortIsNamedWithWhatSetsIt) {
  const Listener taken = Listen(0, true).value();
  const Launch launch = At(taken, 0, 2);
  EXPECT_TRUE(FailsWith(Meet(launch, kEnough), ErrorCode::kUnavailable,
                        {"port " + std::to_string(taken.port), "in use", "advice"}));
}

TEST(RendezvousTest, AnotherWorldSizeIsRefusedAndNamedByBoth) {
  const Listener listener = Listen(0, true).value();
  const std::vector<Result<MeetingPoint>> meetings = ForEachRank(2, [&](uint32_t rank) {
    return Come(listener, At(listener, rank, rank == 0 ? 2 : 3), seconds(2));
  });
  EXPECT_TRUE(FailsWith(meetings[1], ErrorCode::kInvalidArgument,
                        {"rank 1 (host", "there are 3 ranks", "rank 0 (host", "there are 2"}));
  EXPECT_TRUE(FailsWith(meetings[0], ErrorCode::kUnavailable,
                        {"rank 1 of 2 did not join", "refused: rank 1 (host", "3 ranks"}));
}

TEST(RendezvousTest, AnotherRunIsRefusedAndTriesTheNextPort) {
  const Listener other = Listen(0, true).value();
  const Listener listener = Listen(0, true).value();
  const std::vector<Result<MeetingPoint>> meetings = ForEachRank(3, [&](uint32_t rank) {
    Launch launch = At(listener, rank, 2);
    if (rank == 1) launch.endpoints.insert(launch.endpoints.begin(), {"127.0.0.1", other.port});
    if (rank < 2) return Come(listener, launch);
    Launch others = At(other, 0, 2);
    others.run = "another run";
    return Come(other, others, seconds(2));
  });
  EXPECT_TRUE(meetings[0].ok()) << meetings[0].error().message;
  EXPECT_TRUE(meetings[1].ok()) << meetings[1].error().message;
  EXPECT_TRUE(FailsWith(meetings[2], ErrorCode::kUnavailable,
                        {"rank 1 of 2 did not join", "of another run (a run)"}));
}

TEST(RendezvousTest, StrangersDoNotDisturbTheMeeting) {
  const Listener listener = Listen(0, true).value();
  std::vector<Stranger> strangers;
  for (int i = 0; i < 6; ++i) strangers.emplace_back(listener);
  strangers[0].Send("GET / HTTP/1.1\r\n\r\n");
  strangers[1].Say({.type = MessageType::kJoined});
  strangers[2].Say(
      {.type = MessageType::kHello, .number = 1, .a = 3, .text = std::string(5000, 'x')});
  strangers[3].Say(Hello(0, 3));
  strangers[4].Say(Hello(uint64_t{1} << 32 | 1, 3));
  // The last one says nothing.
  const std::vector<Result<MeetingPoint>> meetings =
      ForEachRank(3, [&](uint32_t rank) { return Come(listener, At(listener, rank, 3)); });
  for (const Result<MeetingPoint>& meeting : meetings) {
    EXPECT_TRUE(meeting.ok()) << meeting.error().message;
  }
  for (Stranger& stranger : strangers) EXPECT_TRUE(stranger.IsClosed());
}

TEST(RendezvousTest, ACallerWithoutTheTokenGetsNoPlaceAndLearnsNothingOfTheRun) {
  const Listener listener = Listen(0, true).value();
  const std::string wrong(16, 'x');
  const std::vector<Result<MeetingPoint>> meetings = ForEachRank(2, [&](uint32_t rank) {
    if (rank == 0) return Come(listener, WithToken(listener, 0, 2));
    for (const std::string& token : {std::string(), wrong, kToken + std::string("0")}) {
      Stranger stranger(listener);
      stranger.Say(Hello(1, 2, "a guessed run", token));
      const std::optional<Message> answer = stranger.Hear();
      EXPECT_TRUE(answer.has_value() && answer->type == MessageType::kEnd);
      const std::string line = StatusOf(*answer).error().message;
      EXPECT_THAT(line, testing::HasSubstr("PENSTOCK_JOB_TOKEN"));
      for (const char* secret : {"name of the run", kToken, wrong.c_str(), "rank 0 (host"}) {
        EXPECT_THAT(line, testing::Not(testing::HasSubstr(secret)));
      }
      EXPECT_TRUE(stranger.IsClosed());
    }
    return Come(listener, WithToken(listener, 1, 2));
  });
  EXPECT_TRUE(meetings[0].ok()) << meetings[0].error().message;
  EXPECT_TRUE(meetings[1].ok()) << meetings[1].error().message;
}

TEST(RendezvousTest, ATokenThatOnlyOneSideHasIsNamedByBoth) {
  for (const auto& tokens : {std::pair(kToken, ""), std::pair("", kToken)}) {
    const Listener listener = Listen(0, true).value();
    const std::vector<Result<MeetingPoint>> meetings = ForEachRank(2, [&](uint32_t rank) {
      return Come(listener, WithToken(listener, rank, 2, rank == 0 ? tokens.first : tokens.second),
                  seconds(2));
    });
    EXPECT_TRUE(FailsWith(meetings[1], ErrorCode::kInvalidArgument,
                          {"rank 1 (host", "token", "PENSTOCK_JOB_TOKEN"}));
    EXPECT_TRUE(FailsWith(meetings[0], ErrorCode::kUnavailable,
                          {"rank 1 of 2 did not join", "refused: rank 1 (host", "token"}));
  }
}

TEST(RendezvousTest, AGreetingOfAnotherVersionIsRefusedWithALine) {
  const Listener listener = Listen(0, true).value();
  const std::vector<Result<MeetingPoint>> meetings = ForEachRank(2, [&](uint32_t rank) {
    if (rank == 0) return Come(listener, At(listener, 0, 2));
    Stranger stranger(listener);
    Message hello = Hello(1, 2);
    hello.text = "elsewhere";
    stranger.Say(hello);
    EXPECT_TRUE(FailsWith(StatusOf(*stranger.Hear()), ErrorCode::kInvalidArgument,
                          {"another version of penstock"}));
    return Come(listener, At(listener, 1, 2));
  });
  EXPECT_TRUE(meetings[0].ok() && meetings[1].ok());
}

TEST(RendezvousTest, ACallerThatDoesNotGreetInTimeIsDroppedAndTheMeetingContinues) {
  const Listener listener = Listen(0, true).value();
  const std::vector<Result<MeetingPoint>> meetings = ForEachRank(2, [&](uint32_t rank) {
    if (rank == 0) {
      return HostMeeting(At(listener, 0, 2), {&listener, 1}, kEnough, std::chrono::milliseconds(1));
    }
    // Rank 0 waits for no other rank: only its own clock can have closed these.
    Stranger silent(listener);
    Stranger slow(listener);
    slow.Send(EncodeMessage(Hello(1, 2))->substr(0, 20));
    EXPECT_TRUE(silent.IsClosed());
    EXPECT_TRUE(slow.IsClosed());
    return Come(listener, At(listener, 1, 2));
  });
  EXPECT_TRUE(meetings[0].ok()) << meetings[0].error().message;
  EXPECT_TRUE(meetings[1].ok()) << meetings[1].error().message;
}

TEST(RendezvousTest, RanksAreHeardAtEveryListener) {
  std::vector<Listener> listeners;
  for (int i = 0; i < 2; ++i) listeners.push_back(Listen(0, true).value());
  const std::vector<Result<MeetingPoint>> meetings = ForEachRank(3, [&](uint32_t rank) {
    if (rank == 0) return HostMeeting(At(listeners[0], 0, 3), listeners, kEnough);
    return VisitMeeting(At(listeners[rank - 1], rank, 3), kEnough);
  });
  for (const Result<MeetingPoint>& meeting : meetings) {
    EXPECT_TRUE(meeting.ok()) << meeting.error().message;
  }
}

TEST(RendezvousTest, MoreStrangersThanAreHeardDoNotDisturbTheMeeting) {
  const Listener listener = Listen(0, true).value();
  std::vector<Stranger> strangers;
  for (int i = 0; i < 200; ++i) strangers.emplace_back(listener);
  for (size_t i = 0; i < strangers.size(); i += 2) strangers[i].Send("x");
  const std::vector<Result<MeetingPoint>> meetings =
      ForEachRank(2, [&](uint32_t rank) { return Come(listener, At(listener, rank, 2)); });
  EXPECT_TRUE(meetings[0].ok() && meetings[1].ok());
}

TEST(RendezvousTest, ARankThatGaveUpWaitingMayComeAgain) {
  const Listener listener = Listen(0, true).value();
  const std::vector<Result<MeetingPoint>> meetings = ForEachRank(2, [&](uint32_t rank) {
    if (rank == 0) return Come(listener, At(listener, 0, 2));
    Stranger first(listener);
    first.Say(Hello(1, 2));
    EXPECT_EQ(first.Hear()->type, MessageType::kWelcome);
    Stranger second(listener);  // while the first is still open
    second.Say(Hello(1, 2));
    EXPECT_EQ(second.Hear()->type, MessageType::kWelcome);
    EXPECT_TRUE(first.IsClosed());
    return Come(listener, At(listener, 1, 2));
  });
  EXPECT_TRUE(meetings[0].ok() && meetings[1].ok());
}

TEST(RendezvousTest, TwoProcessesWithOneRankAreBothNamed) {
  const Listener listener = Listen(0, true).value();
  const std::vector<Result<MeetingPoint>> meetings = ForEachRank(2, [&](uint32_t rank) {
    if (rank == 0) return Come(listener, At(listener, 0, 3), seconds(2));
    Stranger first(listener);
    first.Say(Hello(1, 3));
    EXPECT_EQ(first.Hear()->type, MessageType::kWelcome);
    first.Say({.type = MessageType::kJoined});
    Stranger second(listener);
    second.Say(Hello(1, 3));
    const std::optional<Message> answer = second.Hear();
    EXPECT_TRUE(first.IsClosed());
    return Result<MeetingPoint>(StatusOf(*answer).error());
  });
  EXPECT_TRUE(FailsWith(meetings[1], ErrorCode::kInvalidArgument,
                        {"rank 1 (host elsewhere, pid 4711) has joined already", "RANK"}));
  EXPECT_TRUE(FailsWith(meetings[0], ErrorCode::kUnavailable, {"rank 2 of 3 did not join"}));
}

// The listener's loop accepts the second process before it has read that the first has joined.
TEST(RendezvousTest, ARankThatJoinedKeepsItsPlaceHoweverSoonAnotherComes) {
  const Listener listener = Listen(0, true).value();
  for (int round = 0; round < 200; ++round) {
    const std::vector<Result<MeetingPoint>> meetings = ForEachRank(2, [&](uint32_t rank) {
      if (rank == 0) return Come(listener, At(listener, 0, 3));
      Stranger first(listener);
      first.Say(Hello(1, 3));
      EXPECT_EQ(first.Hear()->type, MessageType::kWelcome);
      first.Say({.type = MessageType::kJoined});
      Stranger second(listener);
      second.Say(Hello(1, 3));
      const std::optional<Message> answer = second.Hear();
      EXPECT_TRUE(answer.has_value() && answer->type == MessageType::kEnd);
      return Result<MeetingPoint>(Error{ErrorCode::kUnavailable, "ended"});
    });
    ASSERT_TRUE(FailsWith(meetings[0], ErrorCode::kUnavailable,
                          {"rank 1 (host elsewhere, pid 4711) ended before all ranks had joined"}));
  }
}

TEST(RendezvousTest, ARankThatJoinedAndEndedEndsTheMeeting) {
  const Listener listener = Listen(0, true).value();
  const std::vector<Result<MeetingPoint>> meetings = ForEachRank(3, [&](uint32_t rank) {
    // Rank 1 hears of it, or comes when rank 0 no longer answers.
    if (rank < 2) return Come(listener, At(listener, rank, 4), rank == 0 ? kEnough : seconds(2));
    Stranger one(listener);
    one.Say(Hello(2, 4));
    EXPECT_EQ(one.Hear()->type, MessageType::kWelcome);
    one.Say({.type = MessageType::kJoined});
    return Result<MeetingPoint>(Error{ErrorCode::kUnavailable, "ended"});
  });
  EXPECT_TRUE(FailsWith(meetings[0], ErrorCode::kUnavailable,
                        {"rank 2 (host elsewhere, pid 4711) ended before all ranks had joined"}));
  EXPECT_FALSE(meetings[1].ok());
}

TEST(RendezvousTest, TheEndOfRankZeroEndsTheWaitOfTheOthers) {
  const Listener listener = Listen(0, true).value();
  std::thread zero([&] {
    PENSTOCK_CHECK(WaitFor(listener.socket.get(), POLLIN, steady_clock::now() + kEnough));
    Connection connection(
        UniqueFd(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC)), kMaxPayload);
    connection.Send(EncodeMessage({.type = MessageType::kWelcome}));
  });
  EXPECT_TRUE(FailsWith(VisitMeeting(At(listener, 1, 2), kEnough), ErrorCode::kUnavailable,
                        {"rank 0 of 2 ended before all ranks had joined"}));
  zero.join();
}

TEST(RendezvousTest, ThePlaceOnANodeIsWhatTheLauncherSaysOrWhatHostsShow) {
  const std::vector<Member> members = {{"a", 1}, {"b", 2}, {"a", 3}, {"b", 4}, {"a", 5}};
  EXPECT_EQ(PlaceOf({.size = 5, .rank = 2}, members), (World{5, 2, 3, 1}));
  EXPECT_EQ(PlaceOf({.size = 5, .rank = 3}, members), (World{5, 3, 2, 1}));
  EXPECT_EQ(PlaceOf({.size = 5, .rank = 3, .local_size = 4, .local_rank = 0}, members),
            (World{5, 3, 4, 0}));
  EXPECT_EQ(PlaceOf({.size = 5, .rank = 1, .local_rank = 4}, members), (World{5, 1, 5, 4}));
}

TEST(SocketsTest, HostsThatAreThisMachineAreKnown) {
  for (const char* host : {"localhost", "127.0.0.1", "127.1.2.3"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const char* host : {"head", "10.0.0.1", "128.0.0.1", "127.0.0.1.example.org", "::1", ""}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
  EXPECT_EQ(EndpointName({"::1", 80}), "[::1]:80");
  EXPECT_EQ(EndpointName({"head", 80}), "head:80");
}

TEST(SocketsTest, AListenerForAllInterfacesIsReachedThroughEach) {
  const Listener listener = Listen(0, false).value();
  std::vector<std::string> hosts = InterfaceAddresses();
  hosts.emplace_back("127.0.0.1");
  hosts.emplace_back("localhost");
  for (const std::string& host : hosts) {
    const Result<UniqueFd> socket =
        Connect({host, listener.port}, steady_clock::now() + seconds(5));
    EXPECT_TRUE(socket.ok()) << host << ": " << socket.error().message;
  }
}

/// Whether something listens there.
bool Answers(const std::string& host, uint16_t port) {
  return Connect({host, port}, steady_clock::now() + seconds(5)).ok();
}

TEST(SocketsTest, AnAddressThatIsGivenIsTheOnlyOneThatIsListenedOn) {
  const std::vector<Listener> one = ListenAt({"127.0.0.2", 0}).value();
  ASSERT_EQ(one.size(), 1U);
  EXPECT_TRUE(Answers("127.0.0.2", one[0].port));
  EXPECT_FALSE(Answers("127.0.0.1", one[0].port));
  for (const std::string& own : InterfaceAddresses()) {
    EXPECT_FALSE(Answers(own, one[0].port)) << own;
    const std::vector<Listener> there = ListenAt({own, 0}).value();
    ASSERT_EQ(there.size(), 1U) << own;
    EXPECT_TRUE(Answers(own, there[0].port)) << own;
    EXPECT_FALSE(Answers("127.0.0.1", there[0].port)) << own;
  }
}

TEST(SocketsTest, LocalhostIsListenedOnByLoopbackAlone) {
  const std::vector<Listener> listeners = ListenAt({"localhost", 0}).value();
  for (const Listener& listener : listeners) {
    for (const std::string& own : InterfaceAddresses()) EXPECT_FALSE(Answers(own, listener.port));
  }
  EXPECT_TRUE(Answers("localhost", listeners[0].port));
}

TEST(SocketsTest, AnAddressOfAnotherHostIsListenedForOnAllInterfaces) {
  for (const char* elsewhere : {"192.0.2.1", "no-such-host.invalid"}) {
    const std::vector<Listener> all = ListenAt({elsewhere, 0}).value();
    ASSERT_EQ(all.size(), 1U);
    std::vector<std::string> hosts = InterfaceAddresses();
    hosts.emplace_back("127.0.0.1");
    for (const std::string& host : hosts) EXPECT_TRUE(Answers(host, all[0].port)) << host;
  }
}

TEST(SocketsTest, AnUnknownHostIsNamed) {
  EXPECT_TRUE(FailsWith(Connect({"no-such-host.invalid", 1}, steady_clock::now() + seconds(5)),
                        ErrorCode::kUnavailable, {"no-such-host.invalid:1"}));
}

}  // namespace
}  // namespace penstock::comm
