#include "tools/cli/cli_machine.h"

#include "tools/cli/cli_options.h"

namespace penstock::train {
namespace {

constexpr WholeRange kRanks = {.low = 1, .high = 65536};  // docs/ranks.md

}  // namespace

void AddDevice(CLI::App& command, DeviceChoice* device, const char* help) {
  AddWord(
      command, "--device", device,
      {{"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}, {"auto", DeviceChoice::kAuto}},
      help)
      ->default_str("auto");
}

void AddMemory(CLI::App& command, std::optional<Bytes>* device, std::optional<Bytes>* host) {
  AddSize(command, "--device-memory", device, "64MiB, 1GiB or bytes");
  AddSize(command, "--host-memory", host, "64MiB, 1GiB or bytes");
}

void AddRanks(CLI::App& command, uint32_t* ranks, uint32_t* nodes) {
  AddWhole(command, "--ranks", ranks, kRanks, "ranks of the training (default: 1)");
  AddWhole(command, "--nodes", nodes, kRanks, "nodes of the ranks (default: 1)");
}

Status CheckRanks(uint32_t ranks, uint32_t nodes) {
  if (ranks % nodes == 0) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "--nodes {} does not divide --ranks {}: all nodes must have equally many ranks",
                   nodes, ranks);
}

}  // namespace penstock::train
