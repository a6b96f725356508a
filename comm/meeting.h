// Where ranks that are threads of one process meet for each exchange. In between, each rank copies
// what it receives out of the others' memory, directly: it must not be written before all have
// arrived, nor after that before all have copied.
//
// With a link, an exchange lasts as long as the link would take from the moment at which the last
// rank has arrived.
//
// Threads: one a rank for Run; Leave from any.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "comm/communicator.h"
#include "comm/exchange.h"

namespace penstock::comm {

class Meeting {
 public:
  using Clock = std::chrono::steady_clock;

  Meeting(uint32_t ranks, std::optional<LinkSpeed> link) : link_(link), present_(ranks) {}

  /// Carries out a rank's next exchange. Errors: see Exchanger::Run.
  Status Run(uint32_t rank, const Exchange& mine) EXCLUDES(mutex_);
  /// The rank comes no more. Its own exchanges fail with `why`, those of the others name it.
  void Leave(uint32_t rank, const Error& why) EXCLUDES(mutex_);

  /// How long a link takes for the parts that a rank sends to, and receives from, the others.
  static Clock::duration TimeOf(const LinkSpeed& link, Bytes part, uint32_t ranks);

 private:
  using Exchanges = std::vector<const Exchange*>;  ///< indexed by rank; null: not there
  struct Failure {
    Error error;
    std::optional<uint32_t> rank;  ///< rank that has left
  };

  /// Waits until all ranks are there, and returns what they ask for. All of it, and the memory,
  /// stays as it is until each rank has called Depart.
  Result<Exchanges> Arrive(uint32_t rank, const Exchange& mine) EXCLUDES(mutex_);
  /// Waits until all have copied, and as long as the link takes.
  Status Depart(uint32_t rank, const Exchange& mine) EXCLUDES(mutex_);
  /// It is a failure if the ranks that are there are in another call.
  void CompareWithOthers(uint32_t rank, const Exchange& mine) REQUIRES(mutex_);
  void Begin(Bytes part) REQUIRES(mutex_);
  /// The failure in the words of one rank.
  Error ErrorOf(uint32_t rank, const Exchange& mine) const REQUIRES(mutex_);

  const std::optional<LinkSpeed> link_;

  Mutex mutex_;
  CondVar changed_;
  Exchanges present_ GUARDED_BY(mutex_);
  uint64_t begun_ GUARDED_BY(mutex_) = 0;     ///< exchanges that all ranks have joined
  size_t arrived_ GUARDED_BY(mutex_) = 0;     ///< ranks that have joined the next one
  size_t copying_ GUARDED_BY(mutex_) = 0;     ///< ranks that have not copied in the newest one
  Clock::time_point due_ GUARDED_BY(mutex_);  ///< time when the link has finished it
  std::optional<Failure> failure_ GUARDED_BY(mutex_);
};

}  // namespace penstock::comm
