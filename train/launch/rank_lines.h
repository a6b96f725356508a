// Puts together what the ranks other than 0 write: whole lines, each with its rank before it.
//
// Rank 0 speaks for all and writes to the launcher's own stdout and stderr. So notices of other
// ranks ("penstock: …") are left out, warnings stay, and an error that several of them report in
// the same words comes once.
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

  /// Takes bytes that a rank has written; returns the lines to write for them.
  std::string Add(uint32_t rank, std::string_view bytes);
  /// Returns the line that a rank has begun and not ended, if its output ends here.
  std::string Finish(uint32_t rank);

 private:
  std::string TakeLine(uint32_t rank);

  std::vector<std::string> begun_;  ///< the last line of each rank, as far as it has come
  std::set<std::string> errors_;    ///< said so far
};

}  // namespace penstock::train
