// The options that name the machine of a training: its device, memory, ranks and nodes.
//
// Threads: the main thread.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>

#include "base/result.h"
#include "base/units.h"
#include "train/plan/setup.h"

namespace penstock::train {

void AddDevice(CLI::App& command, DeviceChoice* device, const char* help = "cpu, cuda or auto");

void AddMemory(CLI::App& command, std::optional<Bytes>* device, std::optional<Bytes>* host);

/// --ranks and --nodes, for commands that speak of a training which does not run.
void AddRanks(CLI::App& command, uint32_t* ranks, uint32_t* nodes);

/// Errors: kInvalidArgument for nodes that do not divide the ranks.
Status CheckRanks(uint32_t ranks, uint32_t nodes);

}  // namespace penstock::train
