// Sockets over which the ranks of a job meet: listening, connecting, names of hosts.
//
// No call blocks beyond its deadline, except the look-up of a name, which has its own time-outs.
// Descriptors are non-blocking and do not survive exec. Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace penstock::comm {

using SteadyTime = std::chrono::steady_clock::time_point;

/// The endpoint of a rank: a name or an address, and a port.
struct Endpoint {
  std::string host;
  uint16_t port = 0;

  bool operator==(const Endpoint&) const = default;
};

/// "host:port", with brackets around an IPv6 address.
std::string EndpointName(const Endpoint& endpoint);

/// Returns whether a host is written as this machine itself: "localhost" or 127.x.y.z.
bool IsLoopback(const std::string& host);

struct Listener {
  UniqueFd socket;
  uint16_t port = 0;
};

/// Listens on a port, 0 for any: on the loopback interface if `loopback` is set, else on all.
/// Errors: kUnavailable if the port is taken, else what the system says.
Result<Listener> Listen(uint16_t port, bool loopback);

/// Listens where others will look for this endpoint: on those of its addresses that this host has,
/// and on no other. Listens on all interfaces if this host has none of them (they are a service's),
/// if the name is not known here, or if it stands for a loopback address here though it is not
/// localhost (Debian's /etc/hosts calls 127.0.1.1 by the name of the host): then nothing says by
/// which address the others come. Errors: see Listen. Returns at least one listener.
Result<std::vector<Listener>> ListenAt(const Endpoint& endpoint);

/// Connects to the first address of the endpoint that answers, each given a few seconds. Errors:
/// kUnavailable, saying why the last of them did not.
Result<UniqueFd> Connect(const Endpoint& endpoint, SteadyTime deadline);

/// Waits until `events` of a descriptor are there, or the deadline passes. Returns whether they
/// are.
bool WaitFor(int descriptor, short events, SteadyTime deadline);  // NOLINT(google-runtime-int)

/// The milliseconds from now to a deadline, rounded up, for poll and epoll_wait.
int MillisecondsTo(SteadyTime deadline);

/// Returns the IP address of this end of a connection; empty if the system does not say.
std::string LocalAddress(int descriptor);

/// This host's name, and the addresses of its active interfaces, except loopback ones.
std::string HostName();
std::vector<std::string> InterfaceAddresses();

}  // namespace penstock::comm
