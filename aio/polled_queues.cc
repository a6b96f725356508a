#include "aio/polled_queues.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <fstream>
#include <string>

namespace penstock::aio {

std::optional<bool> HasPolledQueues(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return std::nullopt;
  const dev_t device = S_ISBLK(info.st_mode) ? info.st_rdev : info.st_dev;
  const std::string folder = fmt::format("/sys/dev/block/{}:{}", major(device), minor(device));
  // The queue of a partition is that of its drive.
  for (const char* queue : {"/queue/io_poll", "/../queue/io_poll"}) {
    std::ifstream file(folder + queue);
    int polled = 0;
    if (file >> polled) return polled != 0;
  }
  return std::nullopt;
}

}  // namespace penstock::aio
