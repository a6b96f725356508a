#include "aio/thread_setup.h"

#include <pthread.h>

#include <fmt/ranges.h>

#include <csignal>

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

cpu_set_t ToCpuSet(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  return set;
}

Status BindToCpus(const std::vector<int>& cpus) {
  if (cpus.empty()) return {};
  const cpu_set_t set = ToCpuSet(cpus);
  const int error_number = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
  if (error_number == 0) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "binding the I/O threads to the CPUs {}: {}; none of them is online and allowed "
                   "here (see Cpus_allowed_list in /proc/self/status)",
                   fmt::join(cpus, ","), ErrnoText(error_number));
}

}  // namespace penstock::aio
