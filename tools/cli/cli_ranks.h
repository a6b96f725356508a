// --ranks and --nodes, for commands that speak of a training which does not run.
//
// Threads: the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace penstock::train {

/// What CLI11 fills in, still as text.
struct RankArguments {
  std::string ranks;
  std::string nodes;
};

struct RankCounts {
  uint32_t ranks = 1;
  uint32_t nodes = 1;  ///< divides the ranks
};

void AddRanks(CLI::App& command, RankArguments* arguments);

/// Errors: kInvalidArgument for nodes that do not divide the ranks.
Result<RankCounts> MakeRanks(const RankArguments& arguments);

}  // namespace penstock::train
