// The processes of a job as messages name them. Plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::comm {

/// A process of the job, as it introduced itself.
struct Member {
  std::string host;
  uint64_t pid = 0;

  bool operator==(const Member&) const = default;
};

/// Returns "rank 1 (host a, pid 4711)".
std::string RankName(uint32_t rank, const Member& member);

/// Returns "rank 2", "ranks 2, 3" or, of many, the first and how many more.
std::string RankList(const std::vector<uint32_t>& ranks);

/// Returns `text` as it may stand in a message: control characters become spaces, and what is
/// beyond `most` bytes is cut off, at the beginning of a UTF-8 character.
std::string OneLine(std::string_view text, size_t most);

}  // namespace penstock::comm
