// The ranks of a run, seen from one of them: their identities, whether they agree, and whether they
// live. docs/ranks.md says how ranks are started and what happens when one fails.
//
// A job is a star of TCP connections to rank 0, with a thread in each process ("penstock-job"). It
// carries small messages: agreement before the first step, addresses for a library's own
// connections, votes on commits, heartbeats. Weights and gradients use comm/communicator.h.
//
// If one rank fails, all end. A failing rank reports it, a rank that ends silently is noticed by
// its connection, and one that does not answer by its heartbeats. Each rank that can still answer
// then gets the verdict, a line that names the rank that caused it, and the owner's function is
// called with it on the job's thread. Every waiting call returns the verdict.
//
// With one rank there is no socket and no thread, and every call returns at once.
//
// Threads: any. Agree and Gather are called by one thread at a time, and so are Vote and Finish;
// all ranks make the same of these calls in the same order, except that Vote may overlap the
// others.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "comm/world.h"

namespace penstock::comm {

/// Looks up an environment variable; none if it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// The shortest that each of `Timeouts` may be.
inline constexpr std::chrono::seconds kMinTimeout{2};

struct Timeouts {
  /// A rank that has not answered for this long is considered dead.
  std::chrono::seconds heartbeat{30};
  /// An operation that has not ended after this long is considered stuck.
  std::chrono::seconds operation{600};
};

struct JobOptions {
  /// How long ranks wait for each other at the start.
  std::chrono::seconds join_timeout{300};
  Timeouts timeouts = {};
  /// Called once, on the job's thread, when the job of several ranks has failed; not when Agree
  /// returned an error, which all ranks have then. `report` says in lines what this rank did last
  /// and, on rank 0, how far the others were. It may end the process, and must not destroy the job,
  /// which waits for it. If empty, only calls report the failure.
  std::function<void(const Error& verdict, const std::string& report)> on_failure;
};

/// Whether an operation of the communicator was enqueued, has begun, or has ended.
enum class OperationState { kEnqueued, kBegun, kEnded };

class Job {
 public:
  /// Finds the job's ranks from what its launcher left in the environment (docs/ranks.md), and
  /// waits until all have joined. Without a launcher there is one rank. Errors: kInvalidArgument
  /// for an environment that contradicts itself or rank 0's, and for time-outs that are too short;
  /// kUnavailable if ranks are missing, naming them, or a port is taken.
  static Result<std::unique_ptr<Job>> Join(const Environment& environment, JobOptions options = {});
  /// Returns whether a launcher has left word of several ranks, without waiting for any. Errors:
  /// kInvalidArgument as of Join.
  static Result<bool> HasSeveralRanks(const Environment& environment);
  /// Leaves the job, and waits at most a second until the others have received this rank's last
  /// message. For the others, a rank that leaves without Finish has failed.
  virtual ~Job() = default;

  virtual const World& world() const = 0;
  /// Returns the names of the ranks' hosts, by rank.
  virtual const std::vector<std::string>& hosts() const = 0;
  /// Returns the IP address at which the other ranks reach this one: that of its end of the job's
  /// connections. A loopback one if all ranks are on this node; empty with one rank.
  virtual const std::string& address() const = 0;

  /// Judges by other time-outs from the next heartbeat on. All ranks set the same, which are not
  /// below kMinTimeout.
  virtual void SetTimeouts(const Timeouts& timeouts) = 0;

  /// Waits for all ranks. Returns ok if `mine` of every rank is ok, and otherwise, on all ranks,
  /// the error of the lowest rank that has one, which the message names; one that all ranks have in
  /// the same words is returned as it is. After an error the job has ended: no rank is reported as
  /// missing, and later calls return it.
  virtual Status Agree(const Status& mine) = 0;
  /// Returns every rank's text, by rank. For small things, at most 16 MiB each.
  virtual Result<std::vector<std::string>> Gather(std::string mine) = 0;
  /// Waits until every rank has voted for (step, session). Another vote of a rank is a failure of
  /// the job. May be called beside the other collective calls.
  virtual Status Vote(uint64_t step, uint64_t session) = 0;

  /// Says what this rank does now, for messages: "waits for weights of h.3 (tile 17, /nvme)".
  /// Cheap.
  virtual void Doing(std::string_view what) = 0;
  /// Says that this rank has done a piece of something long that others may wait for, as reading a
  /// commit back. Cheap.
  virtual void Progressed() = 0;
  /// Says how far this rank is. Cheap; from the thread that feeds the device or from a stream.
  virtual void Entered(const Operation& operation, OperationState state) = 0;
  /// Ends the job on all ranks with this error, within a second; the first one counts. If another
  /// rank ends within half a second, that counts as the reason instead: it breaks connections, and
  /// the rank that notices first is not the cause.
  virtual void Fail(const Error& why) = 0;
  /// Returns why the job has failed; ok as long as it has not.
  virtual Status status() const = 0;
  /// Whether it has ended because Agree returned an error, which all ranks have then.
  virtual bool ended_agreed() const = 0;
  /// Waits until all ranks have called it; afterwards no rank is reported as missing.
  virtual Status Finish() = 0;
};

}  // namespace penstock::comm
