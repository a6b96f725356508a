// Finds the commit that all ranks of a state have in common.
//
// Each rank makes a commit durable in its own files and only then votes for it, so a crash may
// leave a commit in the files of some ranks alone. It does not count: the state has a commit if all
// ranks hold it. Until the vote no slot of the commit before is written, so that one is whole on
// every rank. Plain values: this code uses no files.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace penstock::offload {

/// What a commit is called on every rank that holds it.
struct CommitName {
  uint64_t step = 0;
  uint64_t session = 0;  ///< as in CommitRecord
  /// Of two commits of one step and session, where one rank alone holds them: the sequence number.
  /// 0: the newest of that step and session.
  uint64_t sequence = 0;

  bool operator==(const CommitName&) const = default;
};

/// A valid commit in the files of a rank.
struct HeldCommit {
  CommitName name;
  uint64_t sequence = 0;  ///< the newest has the highest
};

/// Returns the commits that all ranks hold, the newest first. `of_ranks`: what each rank holds, by
/// rank. Errors, with the steps of every rank: kNotFound if a rank holds none, as after a crash in
/// the first commit; kCorruption if each rank holds commits of its own, which no crash leaves
/// behind.
Result<std::vector<CommitName>> CommonCommits(std::span<const std::vector<HeldCommit>> of_ranks);

/// Returns a notice for the user if a rank holds a newer commit than `common`, the newest that all
/// ranks hold; else an empty text. `of_ranks`: the newest of each rank comes first.
std::string NewerNotice(std::span<const std::vector<HeldCommit>> of_ranks,
                        const CommitName& common);

}  // namespace penstock::offload
