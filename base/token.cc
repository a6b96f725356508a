#include "base/token.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstdint>

namespace penstock {

Result<std::string> MakeToken() {
  std::array<uint64_t, 2> bits = {};
  // So few bytes are returned in full, or not at all while the source is not ready.
  ssize_t got = 0;
  do {
    got = ::getrandom(bits.data(), sizeof(bits), 0);
  } while (got < 0 && errno == EINTR);
  if (got != sizeof(bits)) return ErrnoError(errno, "taking random bits from the kernel");
  return fmt::format("{:016x}{:016x}", bits[0], bits[1]);
}

}  // namespace penstock
