#include "comm/peers.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "base/check.h"

namespace penstock::comm {
namespace {

constexpr size_t kChunk = 64 << 10;
constexpr size_t kMaxAtOnce = 1 << 20;
/// The number of the descriptor that is no peer.
constexpr uint64_t kAlso = uint64_t{1} << 32;

epoll_event EventsFor(uint64_t number, bool room) {
  epoll_event event = {};
  event.events = EPOLLIN | (room ? uint32_t{EPOLLOUT} : 0U);
  event.data.u64 = number;
  return event;
}

}  // namespace

Connection::Connection(UniqueFd socket, size_t most_payload)
    : socket_(std::move(socket)), arrived_(most_payload) {
  const int on = 1;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void Connection::Send(Frame frame) {
  if (broken_) return;
  output_.push_back(std::move(frame));
  if (output_.size() == 1) Flush();
}

void Connection::Flush() {
  while (!output_.empty()) {
    const std::string& frame = *output_.front();
    const ssize_t sent =
        ::send(socket_.get(), frame.data() + sent_, frame.size() - sent_, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (sent < 0) {
      broken_ = true;
      output_.clear();
      return;
    }
    sent_ += static_cast<size_t>(sent);
    if (sent_ < frame.size()) continue;
    output_.pop_front();
    sent_ = 0;
  }
}

Connection::Received Connection::Receive() {
  size_t total = 0;
  char chunk[kChunk];
  while (total < kMaxAtOnce) {
    const ssize_t count = ::recv(socket_.get(), chunk, sizeof(chunk), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {total, true};
    if (count <= 0) return {total, false};
    arrived_.Add({chunk, static_cast<size_t>(count)});
    total += static_cast<size_t>(count);
  }
  return {total, true};
}

void Connection::HalfClose() { ::shutdown(socket_.get(), SHUT_WR); }

Result<Peers> Peers::Create(int also) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event = EventsFor(kAlso, false);
  if (!epoll.valid() || ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, also, &event) != 0) {
    return ErrnoError(errno, "the job's connections cannot be waited for");
  }
  return Peers(std::move(epoll), also);
}

Status Peers::Add(uint32_t peer, Connection connection) {
  epoll_event event = EventsFor(peer, false);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.descriptor(), &event) != 0) {
    return ErrnoError(errno, "a connection of the job cannot be waited for");
  }
  const auto [added, is_new] = connections_.emplace(peer, Peer{std::move(connection)});
  PENSTOCK_CHECK(is_new, "peer {} has two connections", peer);
  Arm(peer, &added->second);
  return {};
}

Connection Peers::Remove(uint32_t peer) {
  const auto found = connections_.find(peer);
  PENSTOCK_CHECK(found != connections_.end(), "peer {} has no connection", peer);
  Connection connection = std::move(found->second.connection);
  connections_.erase(found);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.descriptor(), nullptr);
  return connection;
}

void Peers::Close(uint32_t peer) {
  if (Find(peer) != nullptr) Remove(peer);
}

Connection* Peers::Find(uint32_t peer) {
  const auto found = connections_.find(peer);
  return found == connections_.end() ? nullptr : &found->second.connection;
}

void Peers::Arm(uint32_t number, Peer* peer) {
  const bool room = peer->connection.has_output();
  if (room == peer->waits_for_room) return;
  epoll_event event = EventsFor(number, room);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, peer->connection.descriptor(), &event);
  peer->waits_for_room = room;
}

void Peers::Send(uint32_t peer, const Frame& frame) {
  const auto found = connections_.find(peer);
  if (found == connections_.end()) return;
  found->second.connection.Send(frame);
  Arm(peer, &found->second);
}

void Peers::SendToAll(const Frame& frame) {
  for (auto& [number, peer] : connections_) {
    peer.connection.Send(frame);
    Arm(number, &peer);
  }
}

Peers::Ready Peers::Wait(SteadyTime deadline) {
  // Takes all that are ready: later decisions must not rest on a part of them.
  events_.resize(connections_.size() + 1);
  Ready ready;
  const int count = ::epoll_wait(epoll_.get(), events_.data(), static_cast<int>(events_.size()),
                                 MillisecondsTo(deadline));
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events_[static_cast<size_t>(i)];
    if (event.data.u64 == kAlso) {
      ready.also = true;
      continue;
    }
    const auto number = static_cast<uint32_t>(event.data.u64);
    Peer& peer = connections_.at(number);
    if ((event.events & EPOLLOUT) != 0) {
      peer.connection.Flush();
      Arm(number, &peer);
    }
    if ((event.events & ~uint32_t{EPOLLOUT}) != 0) ready.peers.push_back(number);
  }
  return ready;
}

void Peers::AwaitClosed(SteadyTime deadline) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, also_, nullptr);
  while (!connections_.empty() && std::chrono::steady_clock::now() < deadline) {
    const Ready ready = Wait(deadline);
    for (const uint32_t number : ready.peers) {
      Connection* connection = Find(number);
      const bool open = connection->Receive().open;
      connection->arrived() = MessageParser(kMaxPayload);
      if (!open) Close(number);
    }
  }
}

}  // namespace penstock::comm
