// Replaces the communicator over NCCL in builds without it.
#include <memory>

#include "comm/communicator.h"

namespace penstock::comm {

Result<std::unique_ptr<Communicator>> CreateNccl(Job&, device::Device&, ActivityMeter*) {
  return MakeError(ErrorCode::kUnavailable,
                   "this build has no NCCL, over which GPUs exchange; build it with CUDA where "
                   "nccl.h is, or use one rank");
}

}  // namespace penstock::comm
