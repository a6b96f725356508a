// CreateNccl, in builds with NCCL.
#include "comm/communicator.h"
#include "comm/job.h"
#include "comm/nccl_communicator.h"
#include "comm/nccl_library.h"

namespace penstock::comm {

Result<std::unique_ptr<Communicator>> CreateNccl(Job& job, device::Device& device,
                                                 ActivityMeter* meter) {
  const Result<NcclLibrary> nccl = LoadNccl();
  PENSTOCK_TRY(job.Agree(nccl.status()));
  return NcclCommunicator::Create(*nccl, job, device, meter);
}

}  // namespace penstock::comm
