// Decides whether commits are read back before they count (penstock.verify_commits).
//
// Plain functions. What a rank's steps move on its drives depends on how many of its tiles live in
// host memory; ranks compare costs, so that they decide alike (zero/engine/exchanges.h).
#pragma once

#include <limits>
#include <string>

#include "base/units.h"
#include "config/config.h"
#include "offload/layout.h"
#include "offload/tile_store.h"

namespace penstock::zero {

/// "auto" reads commits back where that costs at most this share of the steps between two commits:
/// of the bytes that steps and commits move on the drive, and of the seconds.
inline constexpr double kMaxVerificationShare = 0.02;
/// For seconds, the drive is taken to read so many bytes a second where its speed is not known.
inline constexpr double kAssumedReadSpeed = 1e9;
/// The cost where steps move nothing on the drive that it could be compared with.
inline constexpr double kUnknownCost = std::numeric_limits<double>::infinity();

struct CommitVerification {
  bool on = false;
  Bytes read;          ///< by each commit of this rank: all that updates change, in any home
  double cost = 0;     ///< share of the steps between two commits; 0: no commit before the last
  std::string notice;  ///< for the user; empty if there is nothing to say
};

/// `store`: which parts live in host memory.
CommitVerification PlanCommitVerification(const offload::ShardLayout& layout,
                                          const config::Config& config,
                                          const offload::TileStoreOptions& store);

/// Decides again by a cost that is another rank's.
void DecideByCost(double cost, const config::Config& config, CommitVerification& plan);

}  // namespace penstock::zero
