// Decides from the ranks' messages whether the job is alive: which ranks have ended, do not answer,
// or are missing in an operation or a commit.
//
// Ages are counted in ticks of a second, and a tick that is late counts as one: while this process
// itself was stopped (Ctrl-Z of the whole job, a laptop's lid), no rank has aged, and the first
// tick afterwards is ignored, because messages of the others are yet to be read. A second late tick
// in a row counts: a machine that is always late must not disable the watch.
//
// An error that a rank reports counts only half a second later: the end of a rank breaks
// connections of others, whose errors must not be mistaken for the cause.
//
// Pure: events and time in, a verdict out. Threads: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "comm/members.h"
#include "comm/sockets.h"
#include "comm/world.h"

namespace penstock::comm {

/// How far a rank is, and what it does.
struct Progress {
  uint64_t pieces = 0;  ///< finished pieces of work that others may wait for; see Job::Progressed
  std::optional<Operation> enqueued = {};
  std::optional<Operation> begun = {};
  std::optional<Operation> ended = {};
  std::string doing = {};

  bool operator==(const Progress&) const = default;
};

/// The longest name of an operation, and the longest text of what a rank does.
inline constexpr size_t kMaxDoing = 256;

/// Returns "weights of h.3 (operation 17 of step 12)".
std::string OperationName(const Operation& operation);

std::string EncodeProgress(const Progress& progress);
/// Errors: kCorruption.
Result<Progress> DecodeProgress(std::string_view text);

class Watch {
 public:
  static constexpr std::chrono::seconds kTick{1};
  static constexpr std::chrono::milliseconds kFailureSettles{500};

  struct Limits {
    std::chrono::seconds heartbeat{30};
    /// Limit for operations and commits. If empty, they are not checked, because this rank does not
    /// hear of all ranks.
    std::optional<std::chrono::seconds> operation = {};
  };

  Watch(std::vector<Member> members, Limits limits, SteadyTime now);

  void set_limits(const Limits& limits) { limits_ = limits; }

  /// A rank has shown that it lives. From the first time on, its silence is judged.
  void Alive(uint32_t rank);
  /// A rank says how far it is. Silence is not judged of a rank of which only this is heard: of the
  /// one that watches. While it makes progress, ranks that may wait for it are not stuck.
  void Heard(uint32_t rank, Progress progress);
  /// A rank's connection has closed. That is its end, unless it had nothing left to do (`finished`)
  /// or has told of an error.
  void Closed(uint32_t rank, bool finished);
  /// A rank has made its part of the commit of a step. All make one commit after the other.
  void Voted(uint32_t rank, uint64_t step);
  /// A rank ends the job. The first one counts.
  void Failed(uint32_t rank, const Error& why, SteadyTime now);

  /// Returns the verdict, once there is one. To be called whenever something was heard, and at
  /// due().
  std::optional<Error> Judge(SteadyTime now);
  SteadyTime due() const;
  /// Returns a line for each rank: how far it was when it was last heard, and what it did.
  std::string Table() const;
  /// The error that has yet to settle, if there is one.
  const std::optional<Error>& failure() const { return failure_; }

 private:
  struct Seen {
    bool expected = false;  ///< its silence is judged
    bool has_told = false;  ///< whether it has reported an error
    uint64_t silent = 0;    ///< ticks
    /// Ticks since it began an operation that has not ended, or a rank got on with its pieces.
    uint64_t inside = 0;
    Progress progress = {};
  };
  /// A commit of which some ranks have made their part.
  struct Commit {
    uint64_t step = 0;
    std::vector<bool> made = {};  ///< indexed by rank
    uint64_t age = 0;             ///< ticks since the first has, or a rank got on with its pieces
  };

  std::optional<Error> Tick(SteadyTime now);
  std::string Name(uint32_t rank) const { return RankName(rank, members_[rank]); }
  std::string EndedLine(uint32_t rank) const;
  std::optional<Error> StuckOperation() const;
  std::optional<Error> StuckCommit() const;
  /// A line that names the first of the ranks that are missing, with its current operation, and the
  /// other ranks.
  Error Missing(std::string line, const std::vector<uint32_t>& ranks) const;

  std::vector<Member> members_;
  Limits limits_;
  std::vector<Seen> seen_;
  std::optional<Commit> commit_;
  SteadyTime last_tick_;
  bool was_late_ = false;
  std::optional<Error> ended_;
  std::optional<Error> failure_;
  SteadyTime failure_settled_ = {};
};

}  // namespace penstock::comm
