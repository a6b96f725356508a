#include "base/cpu_scope.h"

#include <fmt/ranges.h>
#include <pthread.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>

namespace penstock {
namespace {

cpu_set_t SetOf(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  }
  return set;
}

}  // namespace

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
  const cpu_set_t set = SetOf(cpus);
  int error_number = pthread_getaffinity_np(pthread_self(), sizeof(before_), &before_);
  if (error_number == 0) error_number = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
  if (error_number == 0) return {};
  return ErrnoError(error_number,
                    fmt::format("binding a thread to the CPUs {}", fmt::join(cpus, ",")));
}

Status BindProcess(const std::vector<int>& cpus) {
  const cpu_set_t set = SetOf(cpus);
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    const auto thread = static_cast<pid_t>(std::stol(task.path().filename().string()));
    // One that has ended meanwhile needs no CPUs.
    if (::sched_setaffinity(thread, sizeof(set), &set) != 0 && errno != ESRCH) {
      return ErrnoError(errno,
                        fmt::format("binding the process to the CPUs {}", fmt::join(cpus, ",")));
    }
  }
  if (error) return ErrnoError(error.value(), "looking at /proc/self/task");
  return {};
}

}  // namespace penstock
