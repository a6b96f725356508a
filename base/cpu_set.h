// Sets of CPUs as the kernel takes them, however many CPUs a machine has: cpu_set_t ends at 1024.
//
// Values; UsableCpus may be called by any thread.
#pragma once

#include <sched.h>

#include <cstddef>
#include <vector>

namespace penstock {

class CpuSet {
 public:
  /// Numbers below 0 and beyond those of any kernel are left out.
  explicit CpuSet(const std::vector<int>& cpus);

  size_t bytes() const { return words_.size() * sizeof(cpu_set_t); }
  const cpu_set_t* data() const { return words_.data(); }

 private:
  std::vector<cpu_set_t> words_;
};

/// Fills a set of `bytes` with the CPUs on which the calling thread may run. Returns 0 or an errno:
/// EINVAL if the kernel has more CPUs than the set.
using GetAffinity = int (*)(size_t bytes, cpu_set_t* set);
int OwnAffinity(size_t bytes, cpu_set_t* set);

/// Returns these CPUs, ascending; none if the kernel does not say.
std::vector<int> UsableCpus(GetAffinity get = OwnAffinity);

}  // namespace penstock
