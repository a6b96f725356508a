#include "base/thread.h"

namespace penstock {

Error NoThread(std::string_view what, const std::error_code& why) {
  return MakeError(ErrorCode::kUnavailable,
                   "starting the thread for {}: {}; raise the limit of processes (ulimit -u, or a "
                   "container's pids) or of the address space (ulimit -v)",
                   what, why.message());
}

}  // namespace penstock
