// CreateGloo, in builds with Gloo.
#include <memory>
#include <utility>

#include "comm/communicator.h"
#include "comm/gloo_exchanger.h"
#include "comm/gloo_mesh.h"
#include "comm/job.h"
#include "comm/stream_communicator.h"

namespace penstock::comm {
namespace {

Result<std::unique_ptr<Communicator>> MakeGloo(Job& job, device::Device& device,
                                               std::unique_ptr<GlooMesh> mesh,
                                               ActivityMeter* meter) {
  PENSTOCK_ASSIGN(std::unique_ptr<GlooExchanger> exchanger, GlooExchanger::Create(std::move(mesh)));
  return StreamCommunicator::Create(device, job.world(), std::move(exchanger), &job, meter);
}

}  // namespace

Result<std::unique_ptr<Communicator>> CreateGloo(Job& job, device::Device& device,
                                                 ActivityMeter* meter) {
  PENSTOCK_ASSIGN(std::unique_ptr<GlooMesh> mesh, GlooMesh::Connect(job));
  Result<std::unique_ptr<Communicator>> communicator =
      MakeGloo(job, device, std::move(mesh), meter);
  PENSTOCK_TRY(job.Agree(communicator.status()));
  return communicator;
}

}  // namespace penstock::comm
