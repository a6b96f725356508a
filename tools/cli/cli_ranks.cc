#include "tools/cli/cli_ranks.h"

#include "tools/cli/cli_checks.h"

namespace penstock::train {
namespace {

constexpr uint64_t kMaxRanks = 65536;  // docs/ranks.md

uint32_t CountOr1(const std::string& text) {
  return static_cast<uint32_t>(NumberOrNone(text).value_or(1));
}

}  // namespace

void AddRanks(CLI::App& command, RankArguments* arguments) {
  command.add_option("--ranks", arguments->ranks, "ranks of the training (default: 1)")
      ->check(WholeCheck({.low = 1, .high = kMaxRanks}));
  command.add_option("--nodes", arguments->nodes, "nodes of the ranks (default: 1)")
      ->check(WholeCheck({.low = 1, .high = kMaxRanks}));
}

Result<RankCounts> MakeRanks(const RankArguments& arguments) {
  const RankCounts counts = {.ranks = CountOr1(arguments.ranks),
                             .nodes = CountOr1(arguments.nodes)};
  if (counts.ranks % counts.nodes == 0) return counts;
  return MakeError(ErrorCode::kInvalidArgument,
                   "--nodes {} does not divide --ranks {}: all nodes must have equally many ranks",
                   counts.nodes, counts.ranks);
}

}  // namespace penstock::train
