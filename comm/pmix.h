// Information about the job from PMIx, the service of processes started by mpirun or srun
// --mpi=pmix, and a value that rank 0 publishes there for the others. Its library is used for
// nothing else.
//
// Threads: one. The library has its own thread from Start to the end of the object.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"

namespace penstock::comm {

class Pmix {
 public:
  /// Errors: kUnavailable if the build has no libpmix, or the service does not answer.
  static Result<std::unique_ptr<Pmix>> Start();
  virtual ~Pmix() = default;

  /// Who this rank is. The place on its node is what PMIx knows of it; it need not know.
  struct Place {
    uint32_t size = 1, rank = 0;
    std::optional<uint32_t> local_size, local_rank;
  };
  virtual const Place& place() const = 0;
  /// Leaves a value, as rank 0.
  virtual Status Publish(const std::string& value) = 0;
  /// Waits for the value of rank 0. Errors: kUnavailable after the time-out.
  virtual Result<std::string> Fetch(std::chrono::seconds timeout) = 0;
};

}  // namespace penstock::comm
