// Reads a hostfile, which says how many ranks each host takes, and places ranks on the hosts.
//
// A host is a line, as DeepSpeed and Open MPI write them: "worker1 slots=8". What follows a # is a
// comment, and blank lines are skipped.
//
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock::train {

/// The max number of ranks of a run.
inline constexpr uint32_t kMaxRanks = 65536;

/// A host, and how many ranks may run there.
struct HostSlots {
  std::string name;
  uint32_t slots = 0;

  bool operator==(const HostSlots&) const = default;
};

/// Returns the hosts in the order of their lines. `path` names the file in messages; `own` is this
/// host's name. Errors: kInvalidArgument, with the number of the line, for a line that cannot be
/// parsed and for a duplicate host, under one name or two that are known to mean it (HostKey), as
/// ranks of both lines would get the same GPUs; also for a file without hosts.
Result<std::vector<HostSlots>> ParseHostfile(std::string_view text, const std::string& path,
                                             const std::string& own);

/// Where a rank runs.
struct RankPlace {
  uint32_t rank = 0;
  uint32_t host = 0;        ///< index of its host
  uint32_t local_rank = 0;  ///< among the ranks of its host
  uint32_t local_size = 0;  ///< ranks of its host

  bool operator==(const RankPlace&) const = default;
};

/// Returns the places of `ranks` ranks, by rank. A host is full before the next one gets a rank.
/// `path` names the hostfile in messages. Errors: kInvalidArgument for more ranks than slots.
Result<std::vector<RankPlace>> PlaceRanks(uint32_t ranks, std::span<const HostSlots> hosts,
                                          const std::string& path);

}  // namespace penstock::train
