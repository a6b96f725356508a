// How the ranks of a job meet: rank 0 listens, the others connect, and each gets the list of
// members.
//
// A rank connects and greets with its rank, the world's size, the run and the job's token. Rank 0
// welcomes it, or replies what is wrong with the greeting: first the token, so that a process
// without it learns nothing. A welcomed rank has joined once it confirms that: it may have given up
// waiting and connected again meanwhile. When all have joined, rank 0 sends the list of members to
// all. If a rank that joined has gone, or one is missing when the time is over, the meeting ends
// for all.
//
// Strangers may connect while rank 0 listens. They only get a refusal, and those that do not greet
// in time are dropped; when there are too many, the oldest is.
//
// Threads: one.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "comm/environment.h"
#include "comm/members.h"
#include "comm/peers.h"
#include "comm/world.h"

namespace penstock::comm {

struct MeetingPoint {
  World world;
  std::vector<Member> members;  ///< indexed by rank
  /// Rank 0 has connections to ranks 1, 2, …, in this order; others have the one to rank 0.
  std::vector<Connection> connections;
};

/// Waits until all ranks of a launch have met; with one rank there is nothing to wait for, and
/// nothing is opened. Errors: kInvalidArgument for a greeting that rank 0 refused, kUnavailable for
/// ranks that are missing, which the message names, or for a port that is taken.
Result<MeetingPoint> Meet(Launch launch, std::chrono::seconds timeout);

/// How long a connection may take to greet.
inline constexpr std::chrono::seconds kGreetingTime{10};

/// The two sides of a meeting of several ranks: rank 0 at its listeners, and the others, at the
/// launch's endpoints.
Result<MeetingPoint> HostMeeting(const Launch& launch, std::span<const Listener> listeners,
                                 std::chrono::seconds timeout,
                                 std::chrono::milliseconds greeting_time = kGreetingTime);
Result<MeetingPoint> VisitMeeting(const Launch& launch, std::chrono::seconds timeout);

/// Returns a rank's place on its node: from the launcher, or else from the names of the hosts.
World PlaceOf(const Launch& launch, const std::vector<Member>& members);

}  // namespace penstock::comm
