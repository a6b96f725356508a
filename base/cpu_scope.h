// On which CPUs threads run: those that a thread starts inherit its own.
#pragma once

#include <sched.h>

#include <vector>

#include "base/result.h"

namespace penstock {

/// While it lives, the calling thread runs on `cpus`, and so do for ever the threads that it starts
/// meanwhile, and those that they start. Empty: changes nothing. Of one thread.
class CpuScope {
 public:
  explicit CpuScope(const std::vector<int>& cpus);
  ~CpuScope();
  CpuScope(const CpuScope&) = delete;
  CpuScope& operator=(const CpuScope&) = delete;

  /// Whether the kernel agreed; where it did not, nothing was changed.
  const Status& status() const { return status_; }

 private:
  Status Bind(const std::vector<int>& cpus);

  cpu_set_t before_{};
  bool bound_ = false;
  Status status_;
};

}  // namespace penstock
