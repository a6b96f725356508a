// Moves bytes between the ranks' device memory. Does no arithmetic: every sum is our own kernel, in
// one stated order, so that no back end, topology or choice of algorithm can change a bit.
//
// All ranks make the same calls in the same order, on one communicator of the process. A call
// enqueues work on stream() and returns. The work waits there for the other ranks; the calling
// thread does not wait. What an operation reads must be ordered before it, and what it writes must
// be ordered after it, by events of stream().
//
// If an operation fails, stream() fails: Synchronize returns the first failure, and later
// operations are skipped. On a failure elsewhere, call Abort, because the other ranks would wait
// for operations that do not come. The job, if there is one, is told when an operation is enqueued,
// begins and ends; one that fails never ends.
//
// Threads: Abort from any thread, all else from the one that feeds the compute stream. A
// communicator ends before its device and its job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/activity.h"
#include "base/result.h"
#include "base/units.h"
#include "comm/world.h"
#include "device/device.h"

namespace penstock::comm {

class Job;

class Communicator {
 public:
  /// Aborts what has not ended, so that no order in which ranks end can hang; to complete it,
  /// synchronize stream() first. To the other ranks, this one has ended.
  virtual ~Communicator() = default;

  virtual const World& world() const = 0;
  /// Returns the stream of all operations. Its owner may enqueue other work between them.
  virtual device::Stream& stream() = 0;

  /// Gathers in place: data[r * part, (r + 1) * part) of rank r arrives at every rank. `data` is
  /// device memory of world().size * part bytes.
  virtual void AllGather(std::byte* data, Bytes part, const Operation& operation) = 0;
  /// Exchanges: from[r * stride, r * stride + part) goes to rank r, and what rank r sent arrives at
  /// to[r * part, (r + 1) * part). `part` and `stride` are the same on all ranks, and stride >=
  /// part. Both sides are device memory, and do not overlap: `from` of (size - 1) * stride + part
  /// bytes, `to` of size * part.
  virtual void AllToAll(const std::byte* from, Bytes stride, std::byte* to, Bytes part,
                        const Operation& operation) = 0;

  /// Ends the operations that run or wait, and all later ones, with `why`. The other ranks notice
  /// it as the end of this one, within two seconds. The first reason counts.
  virtual void Abort(const Error& why) = 0;

  /// Returns the device memory that the library holds for itself, outside the device's arena, after
  /// it has run both operations once.
  virtual Bytes device_bytes() const = 0;
};

/// A link between ranks, as slow as one would be: each rank sends its parts to the others at
/// `gigabytes_per_second` (10^9 bytes), and receives theirs at the same time as fast. An operation
/// takes `latency_seconds` besides. The time runs from the moment at which the last rank has begun
/// the operation. With one rank there is no link.
struct LinkSpeed {
  double gigabytes_per_second = 0;  ///< 0: as fast as memory
  double latency_seconds = 0;
};

/// Makes the communicators of ranks that are threads of one process: element r is rank r's, on
/// devices[r], a CPU device. For tests, benchmarks and simulations. Errors: kUnavailable if there
/// is no thread for a stream.
Result<std::vector<std::unique_ptr<Communicator>>> CreateLocal(
    std::span<device::Device* const> devices, std::optional<LinkSpeed> link = std::nullopt);

/// Makes the communicator of a CPU device over TCP, with Gloo. Collective: every rank of the job
/// calls it. `meter`, if any, is told when an operation runs, and outlives the communicator.
/// Errors: kUnavailable if the build has no Gloo or a rank cannot be reached, naming it.
Result<std::unique_ptr<Communicator>> CreateGloo(Job& job, device::Device& device,
                                                 ActivityMeter* meter = nullptr);

/// Makes the communicator of a CUDA device, with NCCL. Collective. `meter` as above. Errors:
/// kUnavailable if the build has no NCCL, or NCCL fails.
Result<std::unique_ptr<Communicator>> CreateNccl(Job& job, device::Device& device,
                                                 ActivityMeter* meter = nullptr);

}  // namespace penstock::comm
