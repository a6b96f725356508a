// Merges the output of the ranks other than 0: whole lines, each prefixed with its rank.
//
// Rank 0 reports for all and writes to the launcher's own stdout and stderr. So notices of other
// ranks ("penstock: …") are dropped, warnings are kept, and an error with the same text from
// several ranks appears once.
//
// A value. Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::train {

class RankLines {
 public:
  /// A longer line is cut into pieces of this many bytes, each of which counts as a line.
  static constexpr size_t kMaxLine = 16384;

  explicit RankLines(size_t ranks) : begun_(ranks) {}

  /// Takes a rank's output; returns the lines to write for it.
  std::string Add(uint32_t rank, std::string_view bytes);
  /// Returns the rank's last line, if its output ends within one.
  std::string Finish(uint32_t rank);

 private:
  std::string TakeLine(uint32_t rank);

  std::vector<std::string> begun_;  ///< the incomplete last line of each rank
  std::set<std::string> errors_;    ///< errors reported so far
};

}  // namespace penstock::train
