// The state of all ranks, read from outside a training run: the newest commit that all of them
// hold.
//
// Holds a lock on every file while it lives. Threads: as offload::StateReader.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "offload/state_check.h"
#include "offload/state_reader.h"

namespace penstock::offload {

/// The files of a state: by rank, and of each rank by the index of their path.
using RankPaths = std::vector<std::vector<std::string>>;

class WholeState {
 public:
  /// With one rank, opens the newest commit; see StateReader::Open. With several, the newest one
  /// that all ranks hold; messages name the rank. Errors, beside those of StateReader::Open:
  /// kNotFound if no commit is complete (see CommonCommits), also if a rank's files are missing and
  /// no other rank holds a commit; kCorruption if they are missing and another rank does, if a file
  /// is of another state or rank, or if the records of the ranks do not belong together.
  static Result<WholeState> Open(const RankPaths& paths, StateLock lock = StateLock::kShared);

  uint32_t world_size() const { return static_cast<uint32_t>(readers_.size()); }
  /// Returns the files of a rank, opened at the commit.
  const StateReader& rank(uint32_t rank) const { return *readers_[rank]; }
  const Uuid& uuid() const { return rank(0).header().uuid; }
  const ModelLayout& model() const { return rank(0).layout().model; }
  int slots() const { return rank(0).header().geometry.slots; }
  /// Returns the record of rank 0. Those of the others have the same numbers of steps, the same
  /// seed and the same compute threads.
  const CommitRecord& commit() const { return rank(0).commit(); }
  /// Returns the name of the commit that is read.
  CommitName name() const {
    return NameOf(commit().head.step, commit().session, commit().sequence);
  }
  /// Returns the commits that all ranks hold, the newest first; there is one at least.
  const std::vector<CommitName>& commits() const { return commits_; }
  /// From now on reads this one of them. Errors: those of reading; kCorruption if the records of
  /// the ranks do not belong together.
  Status Use(const CommitName& name);
  /// Reads every part of every tile that the commit in use names, of the ranks r with r mod `of`
  /// equal to `part`. Returns a line for each that is damaged or cannot be read. Errors: if that
  /// cannot be done; of `progress`.
  Result<std::vector<std::string>> DamagedTiles(const CheckProgress& progress = kNoProgress,
                                                uint32_t part = 0, uint32_t of = 1) const;
  /// Returns what a user has to know of the commit, or an empty text: a commit place is invalid, or
  /// there is a newer commit that not all ranks hold.
  std::string notice() const;
  /// Returns the share of the bytes of all tiles that each file has: by rank, then by path.
  std::vector<double> Shares() const;

 private:
  static Result<WholeState> OpenOneRank(const std::vector<std::string>& paths, StateLock lock);
  /// What each rank's files hold; a rank whose files are missing has no reader.
  Status OpenRanks(const RankPaths& paths, StateLock lock);
  Status CheckRank(uint32_t rank) const;
  Status Agree();
  /// One rank knows two commits of a step apart; several agree without sequence numbers, in which
  /// they differ.
  CommitName NameOf(uint64_t step, uint64_t session, uint64_t sequence) const {
    return {.step = step, .session = session, .sequence = world_size() == 1 ? sequence : 0};
  }
  Status CheckRecord(uint32_t rank) const;
  std::string NewerNotice() const;

  std::vector<std::unique_ptr<StateReader>> readers_;  ///< indexed by rank
  std::vector<CommitName> commits_;
};

}  // namespace penstock::offload
