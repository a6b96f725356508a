#include "comm/exchange.h"

#include <utility>

namespace penstock::comm {
namespace {

std::string SizesOf(const Exchange& exchange) {
  if (exchange.collective == Collective::kAllGather) {
    return fmt::format("all-gather of {} bytes a rank", exchange.part.value);
  }
  return fmt::format("all-to-all of {} bytes a rank, {} bytes apart", exchange.part.value,
                     exchange.stride.value);
}

}  // namespace

std::string ToString(const Exchange& exchange) {
  const Operation& operation = exchange.operation;
  return fmt::format("{} (step {}, operation {}: {})", operation.what, operation.step,
                     operation.index, SizesOf(exchange));
}

bool SameCall(const Exchange& a, const Exchange& b) {
  return a.collective == b.collective && a.part == b.part && a.stride == b.stride &&
         a.operation == b.operation;
}

Error DifferentCalls(uint32_t rank, const std::string& call, uint32_t other,
                     const std::string& other_call) {
  if (other < rank) return DifferentCalls(other, other_call, rank, call);
  return MakeError(ErrorCode::kUnavailable,
                   "the ranks do not make the same calls: rank {} is in {}, and rank {} is in {}",
                   rank, call, other, other_call);
}

}  // namespace penstock::comm
