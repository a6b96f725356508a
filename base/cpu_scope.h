// Chooses the CPUs on which threads run. A thread inherits the CPUs of the thread that starts it.
// ReadTopology (base/topology.h) sees no CPUs but those of the process.
#pragma once

#include <vector>

#include "base/result.h"

namespace penstock {

/// While a CpuScope lives, the calling thread runs on `cpus`. The threads that it starts meanwhile,
/// and those that they start, stay there for ever. Empty `cpus` change nothing. Used by one thread.
class CpuScope {
 public:
  explicit CpuScope(const std::vector<int>& cpus);
  ~CpuScope();
  CpuScope(const CpuScope&) = delete;
  CpuScope& operator=(const CpuScope&) = delete;

  /// Whether the kernel agreed; if not, nothing was changed.
  const Status& status() const { return status_; }

 private:
  std::vector<int> before_;  ///< empty: nothing was changed
  Status status_;
};

/// Binds all threads of the process to `cpus`, which are not empty, for good; those that they start
/// later stay there, too. Errors: of the kernel.
Status BindProcess(const std::vector<int>& cpus);

}  // namespace penstock
