#include "train/launch/meeting_port.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "base/unique_fd.h"
#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

/// Listens at a port, as rank 0 does if `reuse`; not valid if the port is taken.
UniqueFd ListenAt(uint16_t port, bool reuse, uint32_t address) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = reuse ? 1 : 0;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(address);
  at.sin_port = htons(port);
  const bool listens =
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0 &&
      ::listen(socket.get(), 1) == 0;
  return listens ? std::move(socket) : UniqueFd();
}

TEST(MeetingPort, IsRankZerosAlone) {
  const Result<MeetingPort> port = MeetingPort::Hold(0);
  ASSERT_TRUE(port.ok()) << port.error().message;
  ASSERT_NE(port->number(), 0);
  for (const uint32_t address : {INADDR_ANY, INADDR_LOOPBACK}) {
    EXPECT_FALSE(ListenAt(port->number(), false, address).valid());
    EXPECT_TRUE(ListenAt(port->number(), true, address).valid());
  }
}

TEST(MeetingPort, IsFreeAgainWhenItIsNoLongerHeld) {
  uint16_t number = 0;
  {
    const Result<MeetingPort> port = MeetingPort::Hold(0);
    ASSERT_TRUE(port.ok()) << port.error().message;
    number = port->number();
  }
  EXPECT_TRUE(MeetingPort::Hold(number).ok());
}

TEST(MeetingPort, ThatAnotherProgramHasIsRefused) {
  const UniqueFd other(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  ASSERT_EQ(::bind(other.get(), reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(::listen(other.get(), 1), 0);
  ASSERT_EQ(::getsockname(other.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
  EXPECT_TRUE(FailsWith(MeetingPort::Hold(ntohs(at.sin_port)), ErrorCode::kUnavailable,
                        {std::to_string(ntohs(at.sin_port)), "--master-port"}));
}

}  // namespace
}  // namespace penstock::train
