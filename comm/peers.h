// The connections of a job, and one wait for all of them.
//
// A peer is a connection with a number: a rank, or the number of a caller that has not sent its
// rank yet. Sending never blocks: what the socket does not take stays in a queue, and Wait sends it
// later. A connection that fails during a write is still read to its end, because the other side
// may have sent a reason before it ended.
//
// Threads: one at a time.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "comm/sockets.h"
#include "comm/wire.h"

namespace penstock::comm {

/// A connection with what has arrived and what has yet to go.
class Connection {
 public:
  Connection(UniqueFd socket, size_t most_payload);

  int descriptor() const { return socket_.get(); }
  MessageParser& arrived() { return arrived_; }
  bool has_output() const { return !output_.empty(); }

  /// Sends a frame, or as much of it as the socket takes.
  void Send(Frame frame);
  /// Continues with the remaining bytes.
  void Flush();
  struct Received {
    size_t bytes;  ///< new bytes in arrived()
    bool open;     ///< false: nothing more will arrive
  };
  /// Takes what is there, up to a bound that keeps one peer from holding up the others.
  Received Receive();
  /// Says that nothing will be sent any more.
  void HalfClose();

 private:
  UniqueFd socket_;
  MessageParser arrived_;
  std::deque<Frame> output_;
  size_t sent_ = 0;      ///< sent bytes of the first frame
  bool broken_ = false;  ///< whether sent data is dropped
};

class Peers {
 public:
  /// `also` is a descriptor for which Wait waits besides: a listener, or what wakes the thread. It
  /// outlives this object. Errors: what the system says.
  static Result<Peers> Create(int also);

  Status Add(uint32_t peer, Connection connection);
  /// Takes a connection out. There is one.
  Connection Remove(uint32_t peer);
  /// Closes a connection, if there is one.
  void Close(uint32_t peer);
  /// The connection of a peer; null if there is none.
  Connection* Find(uint32_t peer);
  size_t size() const { return connections_.size(); }

  /// Sends to a peer, if there is one.
  void Send(uint32_t peer, const Frame& frame);
  void SendToAll(const Frame& frame);

  struct Ready {
    std::vector<uint32_t> peers;  ///< peers that have something to receive, or have closed
    bool also = false;
  };
  /// Waits until something is ready or the deadline passes. Returns all that is ready then.
  Ready Wait(SteadyTime deadline);
  /// Waits until all has been sent and the others have closed, or the deadline passes. What arrives
  /// meanwhile is dropped. Closing a socket with unread bytes discards what the other side has yet
  /// to receive, so the side that sent the last message waits. Afterwards it waits for nothing
  /// else.
  void AwaitClosed(SteadyTime deadline);

 private:
  struct Peer {
    Connection connection;
    bool waits_for_room = false;
  };
  Peers(UniqueFd epoll, int also) : epoll_(std::move(epoll)), also_(also) {}
  /// Has the kernel tell of room exactly if there is output.
  void Arm(uint32_t number, Peer* peer);

  UniqueFd epoll_;
  int also_;
  std::map<uint32_t, Peer> connections_;
  std::vector<epoll_event> events_;  ///< events of Wait
};

}  // namespace penstock::comm
