// A communicator's call as a value: both collective operations in one form, their text for
// messages, and whether the calls of two ranks match.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "comm/world.h"

namespace penstock::comm {

enum class Collective : uint8_t { kAllGather, kAllToAll };

/// Rank r's from[q * stride, q * stride + part) goes to rank q, at to[r * part, (r + 1) * part). A
/// stride of 0 sends the same to all. A rank sends to itself as well, unless the bytes are in place
/// already (an all-gather's are).
struct Exchange {
  Collective collective;
  Operation operation;
  Bytes part;
  Bytes stride;
  const std::byte* from;
  std::byte* to;
};

/// "weights of h.3 (step 3, operation 7: all-gather of 4096 bytes a rank)".
std::string ToString(const Exchange& exchange);

/// Whether both are the same call, each on its rank: all but the addresses is alike.
bool SameCall(const Exchange& a, const Exchange& b);

/// The error of ranks that are in different calls, in the words of ToString.
Error DifferentCalls(uint32_t rank, const std::string& call, uint32_t other,
                     const std::string& other_call);

}  // namespace penstock::comm
