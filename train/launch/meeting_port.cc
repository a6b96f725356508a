#include "train/launch/meeting_port.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

namespace penstock::train {

Result<MeetingPort> MeetingPort::Hold(uint16_t port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return ErrnoError(errno, "making a socket for rank 0's port");
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address = {};  // all interfaces
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.get(), any, size) != 0 || ::getsockname(socket.get(), any, &size) != 0) {
    const int error = errno;
    if (error != EADDRINUSE) return ErrnoError(error, fmt::format("binding to port {}", port));
    return MakeError(ErrorCode::kUnavailable,
                     "port {} of this host, at which rank 0 would listen, is in use; give a free "
                     "one with --master-port",
                     port);
  }
  return MeetingPort(std::move(socket), ntohs(address.sin_port));
}

}  // namespace penstock::train
