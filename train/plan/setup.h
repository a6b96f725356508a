// What a training and its plan decide alike, from what a command line says: configuration, device,
// threads and the shape of a step.
//
// Threads: the main thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "config/config.h"
#include "device/device.h"
#include "train/models/model.h"
#include "train/plan/node_share.h"

namespace penstock::train {

enum class DeviceChoice { kAuto, kCpu, kCuda };

/// What a command line says of the configuration.
struct ConfigChoice {
  std::vector<std::string> files;    ///< later ones override key by key
  std::vector<std::string> changes;  ///< texts of --change, behind the files
  config::AutoFlags auto_flags = {};
  std::string resumed;  ///< the identity of the run that resumes; empty: none does
  std::optional<Bytes> device_memory;
  std::optional<Bytes> host_memory;
};
/// Errors: of the files; of ParseConfig.
Result<config::Config> ReadConfig(const ConfigChoice& choice, uint32_t ranks);

/// Returns the tokens of a row. `given`: by --sequence-length; `context`: the most that the model
/// takes; `model` names it. Errors: kInvalidArgument.
Result<uint64_t> SequenceLength(const std::optional<uint64_t>& given, uint64_t context,
                                const std::string& model);

/// Returns the free memory of the GPU, if that is to be the device; nothing for the CPU.
Result<std::optional<Bytes>> FindGpu(DeviceChoice choice);

BatchShape ShapeOf(const config::Config& config, uint64_t sequence, uint32_t ranks);

/// Fills in thread counts that the config leaves to the program, for this machine
/// (zero/plan/thread_plan.h) and what a rank has of it.
void ChooseThreads(device::Kind kind, const NodeShare& share, config::Config* config);

}  // namespace penstock::train
