// What PMIx, the service beside a process that mpirun or srun --mpi=pmix has started, says of the
// job, and a value that rank 0 leaves there for the others. Its library is asked for nothing else.
//
// Threads: one. The library has a thread of its own from Start to the end of the object.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/result.h"
#include "comm/world.h"

namespace penstock::comm {

class Pmix {
 public:
  /// Errors: kUnavailable if the build has no libpmix, or the service does not answer.
  static Result<std::unique_ptr<Pmix>> Start();
  virtual ~Pmix() = default;

  virtual const World& world() const = 0;
  /// Leaves a value, as rank 0.
  virtual Status Publish(const std::string& value) = 0;
  /// Waits for the value of rank 0. Errors: kUnavailable after the time-out.
  virtual Result<std::string> Fetch(std::chrono::seconds timeout) = 0;
};

}  // namespace penstock::comm
