// DeepSpeed's keys that have no effect here, because their purpose is served in another way. Each
// belongs to a group, which says what replaces it.
//
// Threads: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock::config {

/// What does the work of a superseded key.
enum class Instead {
  kBudgets,
  kOrder,
  kExchange,
  kMetrics,
  kSummary,
  kNotices,
  kExport,
  kCommits,
  kPlacement,
  kStatePaths,
  kUnusedPath,
  kRecomputation,
  kNoTensorParallel,
  kUpdate,
  kAnyOptimizer,
  kMoments,
  kModules,
  kChecks,
  kPrecision,
  kAccumulation,
  kModelConfig,
  kEpoch,
};
inline constexpr Instead kLastInstead = Instead::kEpoch;

/// Returns what does the work, as the end of a sentence: "metrics.jsonl has …".
std::string_view TextOf(Instead instead);

struct SupersededKey {
  std::string path;
  Instead instead;
  bool operator==(const SupersededKey&) const = default;
};

/// Returns a line for each group: its keys, and what does their work.
std::vector<std::string> SupersededLines(const std::vector<SupersededKey>& keys);

}  // namespace penstock::config
