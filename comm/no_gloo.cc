// Replaces the communicator over Gloo in builds without it.
#include <memory>

#include "comm/communicator.h"

namespace penstock::comm {

Result<std::unique_ptr<Communicator>> CreateGloo(Job&, device::Device&, ActivityMeter*) {
  return MakeError(ErrorCode::kUnavailable,
                   "this build has no Gloo, over which CPU devices exchange; install libgloo-dev "
                   "and build again, or use one rank");
}

}  // namespace penstock::comm
