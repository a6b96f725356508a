#include "aio/drive.h"

namespace penstock::aio {

Result<std::string> Drive::RegisterBuffers(std::span<const std::span<std::byte>> /*memory*/) {
  return MakeError(ErrorCode::kUnavailable,
                   "the engine {} has nothing of the kind, only io_uring has", name());
}

}  // namespace penstock::aio
