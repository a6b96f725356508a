#include "base/cpu_scope.h"

#include <fmt/ranges.h>
#include <pthread.h>

#include <cerrno>

namespace penstock {

CpuScope::CpuScope(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  status_ = Bind(cpus);
  bound_ = status_.ok();
}

CpuScope::~CpuScope() {
  // The kernel does not refuse what it had given; if it does, the thread stays where it is.
  if (bound_) (void)pthread_setaffinity_np(pthread_self(), sizeof(before_), &before_);
}

Status CpuScope::Bind(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  }
  int error_number = pthread_getaffinity_np(pthread_self(), sizeof(before_), &before_);
  if (error_number == 0) error_number = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
  if (error_number == 0) return {};
  return ErrnoError(error_number,
                    fmt::format("binding a thread to the CPUs {}", fmt::join(cpus, ",")));
}

}  // namespace penstock
