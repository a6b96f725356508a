// Reads what a launcher passes to a process in its environment: its rank, the number of ranks, and
// where they meet. docs/ranks.md has the table.
//
// A pure function of the environment; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/job.h"
#include "comm/sockets.h"

namespace penstock::comm {

/// The most ranks that a launcher may ask for.
inline constexpr uint32_t kMaxRanks = 65536;
/// How many characters the job's token has (kTokenVariable in base/token.h).
inline constexpr size_t kMinToken = 16;
inline constexpr size_t kMaxToken = 256;

struct Launch {
  uint32_t size = 1;
  uint32_t rank = 0;
  /// Values for this node, if the launcher gives them.
  std::optional<uint32_t> local_size = {};
  std::optional<uint32_t> local_rank = {};
  /// Whether size and endpoints are to be had from PMIx (comm/pmix.h), and are not here.
  bool by_pmix = false;
  /// Rank 0 listens at the first of these with a free port. The others try all of them.
  std::vector<Endpoint> endpoints = {};
  /// What sets the port, and what to do if it is taken: for messages.
  std::string port_advice = {};
  /// Tells this run from others that may listen there; empty if nothing does.
  std::string run = {};
  /// The secret that a rank must know to join; empty if there is none. It is in no message.
  std::string token = {};
};

/// Reads the environment; one rank where no launcher left anything. Errors: kInvalidArgument for
/// what contradicts itself or is no number, and for launchers that are noticed but not understood.
Result<Launch> ReadLaunch(const Environment& environment);

/// Returns the first host of a list as Slurm writes them: node01 of "node[01-03,07],x". Errors:
/// kInvalidArgument if there is none.
Result<std::string> FirstHost(const std::string& list);

}  // namespace penstock::comm
