// The traffic of a rank's link in a training, and its time.
//
// The model is comm/communicator.h's LinkSpeed: a rank sends to the others and receives from them
// at the same time, one operation after the other. All ranks begin an operation together, because
// all have the same work.
//
// Plain values.
#pragma once

#include <vector>

#include "base/dtype.h"
#include "base/units.h"
#include "offload/layout.h"
#include "sim/clock.h"

namespace penstock::sim {

struct LinkSpeed {
  double bytes_a_second = 0;  ///< speed in each direction; 0: operations take their latency
  Seconds latency = 0;        ///< latency of an operation
};

/// Bytes that a rank sends to each other rank, and receives from it, in operations that follow each
/// other.
using LinkParts = std::vector<Bytes>;

/// Return the operations that zero/exchange/weight_gather makes of a module's weights, and those
/// that zero/exchange/gradient_exchange makes of its gradient each time that it is sent. None with
/// one rank.
LinkParts GatherParts(const offload::ShardLayout& layout, offload::ModuleId module);
LinkParts ExchangeParts(const offload::ShardLayout& layout, offload::ModuleId module, DType dtype);

/// Returns the bytes that a rank sends in these operations.
Bytes SentBytes(const LinkParts& parts, uint32_t ranks);
/// Returns the time that these operations take, one after the other.
Seconds TimeOf(const LinkSpeed& link, const LinkParts& parts, uint32_t ranks);

}  // namespace penstock::sim
