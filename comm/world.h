// The ranks, the rank of this process, and the purpose of an operation between them. Plain values.
#pragma once

#include <cstdint>
#include <string>

namespace penstock::comm {

struct World {
  uint32_t size = 1;        ///< ranks of the run
  uint32_t rank = 0;        ///< this one
  uint32_t local_size = 1;  ///< ranks on this node
  uint32_t local_rank = 0;  ///< among them

  bool operator==(const World&) const = default;
};

/// Names an operation: in messages, and to find ranks that are not in the same one. All of it is
/// the same on all ranks.
struct Operation {
  uint64_t step = 0;   ///< step of the run, from 1; 0: before the first step
  uint32_t index = 0;  ///< number of the operation in its step
  std::string what;    ///< "weights of h.3", for people

  bool operator==(const Operation&) const = default;
};

}  // namespace penstock::comm
