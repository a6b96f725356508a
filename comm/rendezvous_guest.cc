// The other ranks' side of a meeting.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "comm/rendezvous.h"

namespace penstock::comm {
namespace {

using std::chrono::steady_clock;

/// How long one of several endpoints may take to answer a greeting.
constexpr std::chrono::seconds kAnswerTime{5};
/// Pause between two rounds of all endpoints.
constexpr std::chrono::milliseconds kPause{200};
/// Rank 0 gives up first, and names the missing ranks.
constexpr std::chrono::seconds kRankZeroFirst{10};

Result<Message> AwaitMessage(Connection* connection, SteadyTime deadline) {
  bool open = true;
  while (true) {
    PENSTOCK_ASSIGN(std::optional<Message> message, connection->arrived().Next());
    if (message.has_value()) return *std::move(message);
    if (!open) return Error{ErrorCode::kUnavailable, "the connection was closed"};
    if (!WaitFor(connection->descriptor(), POLLIN, deadline)) {
      return Error{ErrorCode::kUnavailable, "no answer"};
    }
    open = connection->Receive().open;
  }
}

/// Connects and greets. Errors: kInvalidArgument if rank 0 refuses, kUnavailable or kCorruption if
/// it is not there.
Result<Connection> Greet(const Launch& launch, const Endpoint& endpoint, SteadyTime deadline) {
  PENSTOCK_ASSIGN(UniqueFd socket, Connect(endpoint, deadline));
  Connection connection(std::move(socket), kMaxPayload);
  connection.Send(EncodeMessage({.type = MessageType::kHello,
                                 .number = launch.rank,
                                 .a = launch.size,
                                 .b = static_cast<uint64_t>(::getpid()),
                                 .key = launch.run,
                                 .text = EncodeGreeting({HostName(), launch.token})}));
  const Result<Message> answer = AwaitMessage(&connection, deadline);
  if (!answer.ok()) {
    return Error{answer.error().code, EndpointName(endpoint) + ": " + answer.error().message};
  }
  if (answer->type == MessageType::kWelcome) return connection;
  if (answer->type == MessageType::kEnd && !StatusOf(*answer).ok()) {
    return StatusOf(*answer).error();
  }
  // A connection to an unused port of the own host may connect to itself.
  return MakeError(ErrorCode::kUnavailable, "{}: nothing listens there yet",
                   EndpointName(endpoint));
}

Result<MeetingPoint> AwaitStart(const Launch& launch, Connection connection,
                                std::chrono::seconds timeout) {
  connection.Send(EncodeMessage({.type = MessageType::kJoined}));
  const Result<Message> answer =
      AwaitMessage(&connection, steady_clock::now() + timeout + kRankZeroFirst);
  if (!answer.ok()) {
    return MakeError(answer.error().code, "rank 0 of {} ended before all ranks had joined ({})",
                     launch.size, answer.error().message);
  }
  if (answer->type == MessageType::kEnd) PENSTOCK_TRY(StatusOf(*answer));
  PENSTOCK_ASSIGN(std::vector<Member> members, DecodeMembers(answer->text, launch.size));
  MeetingPoint meeting;
  meeting.world = PlaceOf(launch, members);
  meeting.members = std::move(members);
  meeting.connections.push_back(std::move(connection));
  return meeting;
}

}  // namespace

Result<MeetingPoint> VisitMeeting(const Launch& launch, std::chrono::seconds timeout) {
  const SteadyTime deadline = steady_clock::now() + timeout;
  const bool several = launch.endpoints.size() > 1;
  Error why = {ErrorCode::kUnavailable, "there is no address to try"};
  while (steady_clock::now() < deadline) {
    for (const Endpoint& endpoint : launch.endpoints) {
      const SteadyTime end =
          several ? std::min(deadline, steady_clock::now() + kAnswerTime) : deadline;
      Result<Connection> connection = Greet(launch, endpoint, end);
      if (connection.ok()) return AwaitStart(launch, *std::move(connection), timeout);
      why = connection.error();
      // If there are several, another run may use this one.
      if (why.code == ErrorCode::kInvalidArgument && !several) return why;
    }
    std::this_thread::sleep_until(std::min(deadline, steady_clock::now() + kPause));
  }
  return MakeError(why.code,
                   "rank {} of {} did not reach rank 0 within {} s: {}; see whether rank 0 was "
                   "started, and whether its port is open to this host",
                   launch.rank, launch.size, timeout.count(), why.message);
}

}  // namespace penstock::comm
