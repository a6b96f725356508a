#include "base/cpu_scope.h"

#include <fmt/ranges.h>
#include <pthread.h>
#include <sched.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "base/cpu_set.h"

namespace penstock {
namespace {

Status BindThread(const std::vector<int>& cpus) {
  const CpuSet set(cpus);
  const int error_number = ::pthread_setaffinity_np(::pthread_self(), set.bytes(), set.data());
  if (error_number == 0) return {};
  return ErrnoError(error_number,
                    fmt::format("binding a thread to the CPUs {}", fmt::join(cpus, ",")));
}

}  // namespace

CpuScope::CpuScope(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  std::vector<int> before = UsableCpus();
  status_ = BindThread(cpus);
  if (status_.ok()) before_ = std::move(before);
}

CpuScope::~CpuScope() {
  // The kernel does not refuse what it had given; if it does, the thread stays where it is.
  if (!before_.empty()) static_cast<void>(BindThread(before_));
}

Status BindProcess(const std::vector<int>& cpus) {
  const CpuSet set(cpus);
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    const auto thread = static_cast<pid_t>(std::stol(task.path().filename().string()));
    // One that has ended meanwhile needs no CPUs.
    if (::sched_setaffinity(thread, set.bytes(), set.data()) != 0 && errno != ESRCH) {
      return ErrnoError(errno,
                        fmt::format("binding the process to the CPUs {}", fmt::join(cpus, ",")));
    }
  }
  if (error) return ErrnoError(error.value(), "looking at /proc/self/task");
  return {};
}

}  // namespace penstock
