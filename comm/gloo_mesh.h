// Gloo's TCP connections from this rank to every other one.
//
// Gloo's own thread reads and writes. When a connection ends, it wakes only waits for data that has
// not begun to arrive: see comm/gloo_exchanger.h for what that means for a protocol. It writes to
// sockets whose other side may be gone, so the process must ignore SIGPIPE, which is checked.
//
// Threads: Connect from one; Close while the mesh is not in use; the rest from any.
#pragma once

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "comm/job.h"

namespace penstock::comm {

class GlooMesh {
 public:
  using Buffer = gloo::transport::UnboundBuffer;

  /// Connects this rank with all others at once, within 60 s. Collective. With one rank there is
  /// nothing to connect. Errors: kUnavailable if a rank cannot be reached, naming the lowest one.
  static Result<std::unique_ptr<GlooMesh>> Connect(Job& job);

  uint32_t size() const { return size_; }
  uint32_t rank() const { return rank_; }
  /// A range of memory, for one message of this size at a time. It may end before the message has
  /// arrived or been sent: then it does not.
  std::unique_ptr<Buffer> NewBuffer(void* data, Bytes size);
  /// Closes the connections. What was written to them still arrives.
  void Close();

 private:
  GlooMesh(uint32_t size, uint32_t rank) : size_(size), rank_(rank) {}
  /// Listens for each of the others, and returns the addresses, one after the other.
  Result<std::string> Listen(const std::string& address);
  /// `addresses`: of each rank, what its Listen returned.
  Status ConnectToAll(const std::vector<std::string>& addresses);
  Status ConnectTo(uint32_t rank, const std::string& addresses);

  const uint32_t size_;
  const uint32_t rank_;
  std::shared_ptr<gloo::transport::Context> context_;  ///< null with one rank
};

}  // namespace penstock::comm
