// A build without libpmix.
#include "comm/pmix.h"

namespace penstock::comm {

Result<std::unique_ptr<Pmix>> Pmix::Start() {
  return Error{ErrorCode::kUnavailable,
               "PMIX_RANK is set, as by mpirun and srun --mpi=pmix, but this build has no PMIx; "
               "install libpmix-dev and build again, or unset PMIX_RANK and set RANK, WORLD_SIZE, "
               "MASTER_ADDR and MASTER_PORT"};
}

}  // namespace penstock::comm
