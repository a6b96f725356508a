#include "offload/uuid.h"

#include <sys/random.h>

#include <cerrno>

namespace penstock::offload {

Result<Uuid> RandomUuid() {
  Uuid uuid{};
  if (::getrandom(uuid.data(), uuid.size(), 0) != static_cast<ssize_t>(uuid.size())) {
    return ErrnoError(errno, "reading random bytes for a UUID");
  }
  return uuid;
}

std::string ToString(const Uuid& uuid) {
  std::string text;
  for (uint8_t byte : uuid) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace penstock::offload
