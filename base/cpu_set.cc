#include "base/cpu_set.h"

#include <pthread.h>

#include <cerrno>

namespace penstock {
namespace {

/// A limit for a kernel that refuses every size.
constexpr size_t kMaxWords = 64;

}  // namespace

CpuSet::CpuSet(const std::vector<int>& cpus) : words_(1) {
  for (const int cpu : cpus) {
    if (cpu < 0) continue;
    const size_t words = static_cast<size_t>(cpu) / CPU_SETSIZE + 1;
    if (words > kMaxWords) continue;
    if (words > words_.size()) words_.resize(words);
    CPU_SET_S(static_cast<size_t>(cpu), bytes(), words_.data());
  }
}

int OwnAffinity(size_t bytes, cpu_set_t* set) {
  return ::pthread_getaffinity_np(::pthread_self(), bytes, set);
}

std::vector<int> UsableCpus(GetAffinity get) {
  std::vector<int> cpus;
  for (size_t words = 1; words <= kMaxWords; words *= 2) {
    std::vector<cpu_set_t> set(words);
    const size_t bytes = words * sizeof(cpu_set_t);
    const int error_number = get(bytes, set.data());
    if (error_number == EINVAL) continue;
    if (error_number != 0) break;
    for (size_t cpu = 0; cpu < words * CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set.data())) cpus.push_back(static_cast<int>(cpu));
    }
    break;
  }
  return cpus;
}

}  // namespace penstock
