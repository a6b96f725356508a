#include <unistd.h>

#include <cstdlib>

#include "train/cli.h"

namespace {

/// OpenMP's workers spin while they wait unless told otherwise before the library is loaded. They
/// share the cores with the optimizer's, the streams' and the I/O threads, which spinning keeps
/// from working: start again with the policy set. A policy of the user's stays.
void UsePassiveOpenMpWaits(char** argv) {
  // No other thread exists yet.
  // NOLINTNEXTLINE(concurrency-mt-unsafe)
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  // NOLINTNEXTLINE(concurrency-mt-unsafe)
  if (::setenv("OMP_WAIT_POLICY", "passive", 0) != 0) return;
  // Returns only on failure; then everything works, slower.
  ::execv("/proc/self/exe", argv);
}

}  // namespace

int main(int argc, char** argv) {
  UsePassiveOpenMpWaits(argv);
  return penstock::train::RunCommandLine(argc, argv);
}
