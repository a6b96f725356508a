#include "comm/sockets.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

namespace penstock::comm {
namespace {

constexpr std::chrono::seconds kConnectTime{5};
constexpr int kBacklog = 4096;

/// Any address that a socket may have, and its length.
struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  bool IsLoopback() const {
    if (storage.ss_family == AF_INET6) {
      return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
    }
    const auto* in = reinterpret_cast<const sockaddr_in*>(&storage);
    return ntohl(in->sin_addr.s_addr) >> 24U == IN_LOOPBACKNET;
  }
};

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// Looks up a name or an address; at least one is found.
Result<Addresses> LookUp(const Endpoint& endpoint) {
  const addrinfo hints = {
      .ai_flags = AI_NUMERICSERV, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int failure =
      ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (failure == 0) return Addresses(found, &::freeaddrinfo);
  return MakeError(ErrorCode::kUnavailable, "{}: {}", EndpointName(endpoint),
                   failure == EAI_SYSTEM ? ErrnoText(errno) : ::gai_strerror(failure));
}

/// The addresses of a list, each once: /etc/hosts may name one twice.
std::vector<SocketAddress> Distinct(const addrinfo& first) {
  std::vector<SocketAddress> all;
  for (const addrinfo* one = &first; one != nullptr; one = one->ai_next) {
    SocketAddress address;
    address.size = std::min<socklen_t>(one->ai_addrlen, sizeof(address.storage));
    std::memcpy(&address.storage, one->ai_addr, address.size);
    const auto same = [&address](const SocketAddress& other) {
      return std::memcmp(&other.storage, &address.storage, sizeof(address.storage)) == 0;
    };
    if (std::ranges::none_of(all, same)) all.push_back(address);
  }
  return all;
}

SocketAddress InternetAddress(uint32_t address, uint16_t port) {
  SocketAddress result;
  auto* in = reinterpret_cast<sockaddr_in*>(&result.storage);
  in->sin_family = AF_INET;
  in->sin_addr.s_addr = htonl(address);
  in->sin_port = htons(port);
  result.size = sizeof(sockaddr_in);
  return result;
}

SocketAddress AnyInternet6Address(uint16_t port) {
  SocketAddress result;
  auto* in = reinterpret_cast<sockaddr_in6*>(&result.storage);
  in->sin6_family = AF_INET6;
  in->sin6_addr = in6addr_any;
  in->sin6_port = htons(port);
  result.size = sizeof(sockaddr_in6);
  return result;
}

uint16_t PortOf(const UniqueFd& socket) {
  SocketAddress own;
  own.size = sizeof(own.storage);
  if (::getsockname(socket.get(), own.get(), &own.size) != 0) return 0;
  return ntohs(own.storage.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&own.storage)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&own.storage)->sin_port);
}

Error NoListener(int why, uint16_t port) {
  const std::string what = fmt::format("rank 0 cannot listen on port {}", port);
  if (why != EADDRINUSE) return ErrnoError(why, what);
  return Error{ErrorCode::kUnavailable, what + ": the address is in use"};
}

Result<Listener> ListenOn(SocketAddress address, uint16_t port) {
  UniqueFd socket(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return NoListener(errno, port);
  const int on = 1;
  const int off = 0;
  // A port whose last job has just ended is free.
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.storage.ss_family == AF_INET6) {
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (::bind(socket.get(), address.get(), address.size) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    return NoListener(errno, port);
  }
  const uint16_t bound = PortOf(socket);
  return Listener{std::move(socket), bound};
}

/// Connects to one address. Returns an invalid descriptor and sets errno if that fails.
UniqueFd ConnectAt(const addrinfo& address, SteadyTime deadline) {
  UniqueFd socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return {};
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return socket;
  int why = errno;
  if (why == EINPROGRESS || why == EINTR) {
    why = ETIMEDOUT;
    socklen_t size = sizeof(why);
    if (WaitFor(socket.get(), POLLOUT, deadline) &&
        ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &why, &size) == 0 && why == 0) {
      return socket;
    }
  }
  errno = why;
  return {};
}

}  // namespace

std::string EndpointName(const Endpoint& endpoint) {
  if (endpoint.host.find(':') == std::string::npos) {
    return fmt::format("{}:{}", endpoint.host, endpoint.port);
  }
  return fmt::format("[{}]:{}", endpoint.host, endpoint.port);
}

bool IsLoopback(const std::string& host) {
  in_addr address = {};
  if (::inet_pton(AF_INET, host.c_str(), &address) == 1) {
    return ntohl(address.s_addr) >> 24U == IN_LOOPBACKNET;
  }
  return host == "localhost";
}

Result<Listener> Listen(uint16_t port, bool loopback) {
  if (loopback) return ListenOn(InternetAddress(INADDR_LOOPBACK, port), port);
  Result<Listener> both = ListenOn(AnyInternet6Address(port), port);
  // Without IPv6 there is no such socket; a port in use is in use for both.
  if (both.ok() || both.error().code == ErrorCode::kUnavailable) return both;
  return ListenOn(InternetAddress(INADDR_ANY, port), port);
}

Result<std::vector<Listener>> ListenAt(const Endpoint& endpoint) {
  std::vector<Listener> listeners;
  const Result<Addresses> found = LookUp(endpoint);
  for (const SocketAddress& address :
       found.ok() ? Distinct(**found) : std::vector<SocketAddress>()) {
    if (address.IsLoopback() && !IsLoopback(endpoint.host) && endpoint.host != "::1") continue;
    Result<Listener> listener = ListenOn(address, endpoint.port);
    if (listener.ok()) {
      listeners.push_back(*std::move(listener));
    } else if (listener.error().code == ErrorCode::kUnavailable) {
      return listener.error();
    }
    // Otherwise the address is not of this host, or of a family that it does not have.
  }
  if (listeners.empty()) {
    PENSTOCK_ASSIGN(Listener all, Listen(endpoint.port, IsLoopback(endpoint.host)));
    listeners.push_back(std::move(all));
  }
  return listeners;
}

Result<UniqueFd> Connect(const Endpoint& endpoint, SteadyTime deadline) {
  PENSTOCK_ASSIGN(const Addresses found, LookUp(endpoint));
  int why = EHOSTUNREACH;
  for (const addrinfo* address = found.get(); address != nullptr; address = address->ai_next) {
    const SteadyTime end = std::min(deadline, std::chrono::steady_clock::now() + kConnectTime);
    UniqueFd socket = ConnectAt(*address, end);
    if (socket.valid()) return socket;
    why = errno;
  }
  return MakeError(ErrorCode::kUnavailable, "{}: {}", EndpointName(endpoint), ErrnoText(why));
}

bool WaitFor(int descriptor, short events, SteadyTime deadline) {  // NOLINT(google-runtime-int)
  pollfd one = {.fd = descriptor, .events = events, .revents = 0};
  while (true) {
    const int ready = ::poll(&one, 1, MillisecondsTo(deadline));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
}

int MillisecondsTo(SteadyTime deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return "unknown";
  return name;
}

std::string LocalAddress(int descriptor) {
  SocketAddress own;
  own.size = sizeof(own.storage);
  if (::getsockname(descriptor, own.get(), &own.size) != 0) return {};
  char text[INET6_ADDRSTRLEN] = {};
  const void* address = &reinterpret_cast<const sockaddr_in*>(&own.storage)->sin_addr;
  int family = AF_INET;
  if (own.storage.ss_family == AF_INET6) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6*>(&own.storage)->sin6_addr;
    // A listener for both families sees IPv4 as the last four bytes of IPv6.
    if (IN6_IS_ADDR_V4MAPPED(&in6)) {
      address = &in6.s6_addr[12];
    } else {
      address = &in6;
      family = AF_INET6;
    }
  }
  return ::inet_ntop(family, address, text, sizeof(text)) == nullptr ? "" : text;
}

std::vector<std::string> InterfaceAddresses() {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(found, &::freeifaddrs);
  std::vector<std::string> addresses;
  for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0 ||
        (one->ifa_flags & IFF_LOOPBACK) != 0) {
      continue;
    }
    char text[INET6_ADDRSTRLEN] = {};
    const int family = one->ifa_addr->sa_family;
    const void* address = nullptr;
    if (family == AF_INET) {
      address = &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
    } else if (family == AF_INET6) {
      const auto& in6 = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&in6)) continue;  // needs the name of an interface beside it
      address = &in6;
    }
    if (address != nullptr && ::inet_ntop(family, address, text, sizeof(text)) != nullptr) {
      addresses.emplace_back(text);
    }
  }
  return addresses;
}

}  // namespace penstock::comm
