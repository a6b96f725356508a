#include "aio/thread_setup.h"

#include <pthread.h>

#include <fmt/ranges.h>

#include <csignal>

#include "base/cpu_set.h"

namespace penstock::aio {

void EnterIoThread(const char* name) {
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) {
    sigdelset(&blocked, own);
  }
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  pthread_setname_np(pthread_self(), name);
}

Status BindToCpus(const std::vector<int>& cpus) {
  if (cpus.empty()) return {};
  const CpuSet set(cpus);
  const int error_number = pthread_setaffinity_np(pthread_self(), set.bytes(), set.data());
  if (error_number == 0) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "binding the I/O threads to the CPUs {}: {}; none of them is online and allowed "
                   "here (see Cpus_allowed_list in /proc/self/status)",
                   fmt::join(cpus, ","), ErrnoText(error_number));
}

}  // namespace penstock::aio
