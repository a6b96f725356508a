#include <memory>
#include <utility>
#include <vector>

#include "tests/comm/back_ends.h"
#include "tests/comm/job_of_threads.h"

namespace penstock::comm {
namespace {

Result<Ranks> MakeNccl(uint32_t size) {
  Ranks ranks;
  ranks.jobs = MakeJobOfThreads(size);
  for (uint32_t rank = 0; rank < size; ++rank) {
    PENSTOCK_ASSIGN(auto device, device::CreateCudaDevice({.memory = kRankMemory}));
    ranks.devices.push_back(std::move(device));
  }
  ranks.communicators.resize(size);
  std::vector<Status> made(size);
  OnThreads(size, [&](uint32_t rank) {
    auto communicator = CreateNccl(*ranks.jobs[rank], *ranks.devices[rank]);
    made[rank] = communicator.status();
    if (communicator.ok()) ranks.communicators[rank] = std::move(communicator).value();
  });
  for (const Status& status : made) PENSTOCK_TRY(status);
  return ranks;
}

std::optional<std::string> MissingNccl(uint32_t ranks) {
  const auto device = device::CreateCudaDevice({.memory = 1_MiB});
  if (!device.ok()) return device.error().message;
  const bool emulated = (*device)->name().starts_with("cuda (emulated");
  if (ranks > 1 && !emulated) return "NCCL takes one rank on a GPU";
  return std::nullopt;
}

}  // namespace

std::vector<BackEnd> BackEnds() {
  return {{.name = "nccl", .missing = MissingNccl, .make = MakeNccl}};
}

}  // namespace penstock::comm
