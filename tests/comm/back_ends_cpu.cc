#include <csignal>
#include <memory>
#include <utility>
#include <vector>

#include "tests/comm/back_ends.h"
#include "tests/comm/job_of_threads.h"

namespace penstock::comm {
namespace {

Result<Ranks> MakeDevices(uint32_t size) {
  Ranks ranks;
  for (uint32_t rank = 0; rank < size; ++rank) {
    PENSTOCK_ASSIGN(auto device, device::CreateCpuDevice({.memory = kRankMemory}));
    ranks.devices.push_back(std::move(device));
  }
  return ranks;
}

Result<Ranks> MakeLocal(uint32_t size) {
  PENSTOCK_ASSIGN(Ranks ranks, MakeDevices(size));
  std::vector<device::Device*> devices;
  for (const auto& device : ranks.devices) devices.push_back(device.get());
  PENSTOCK_ASSIGN(ranks.communicators, CreateLocal(devices));
  return ranks;
}

Result<Ranks> MakeGloo(uint32_t size) {
  std::signal(SIGPIPE, SIG_IGN);
  PENSTOCK_ASSIGN(Ranks ranks, MakeDevices(size));
  ranks.jobs = MakeJobOfThreads(size);
  ranks.communicators.resize(size);
  std::vector<Status> made(size);
  OnThreads(size, [&](uint32_t rank) {
    auto communicator = CreateGloo(*ranks.jobs[rank], *ranks.devices[rank]);
    made[rank] = communicator.status();
    if (communicator.ok()) ranks.communicators[rank] = std::move(communicator).value();
  });
  for (const Status& status : made) PENSTOCK_TRY(status);
  return ranks;
}

/// Says whether the build has Gloo.
std::optional<std::string> MissingGloo(uint32_t) {
  const Result<Ranks> one = MakeGloo(1);
  return one.ok() ? std::nullopt : std::optional(one.error().message);
}

}  // namespace

std::vector<BackEnd> BackEnds() {
  return {{.name = "local", .missing = [](uint32_t) { return std::nullopt; }, .make = MakeLocal},
          {.name = "gloo", .missing = MissingGloo, .make = MakeGloo}};
}

}  // namespace penstock::comm
