// Decides whether commits are read back before they count (penstock.verify_commits).
//
// Plain functions of what all ranks know alike: they decide alike.
#pragma once

#include <optional>
#include <string>

#include "base/units.h"
#include "config/config.h"
#include "offload/layout.h"

namespace penstock::zero {

/// "auto" reads commits back where that costs at most this share of the steps between two commits:
/// of the bytes that steps and commits move on the drive, and of the seconds.
inline constexpr double kMaxVerificationShare = 0.02;
/// For seconds, the drive is taken to read so many bytes a second where its speed is not known.
inline constexpr double kAssumedReadSpeed = 1e9;

struct CommitVerification {
  bool on = false;
  Bytes read;  ///< by each commit of this rank: all that updates change
  /// Of the steps between two commits, what reading back costs. None: nothing of a step is on a
  /// drive to compare it with, or no commit comes before the last.
  std::optional<double> share;
  std::string notice;  ///< for the user; empty if there is nothing to say
};
CommitVerification PlanCommitVerification(const offload::ShardLayout& layout,
                                          const config::Config& config);

}  // namespace penstock::zero
