// The GPU, its driver and NCCL, or why there are none.
//
// Threads: any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "device/device.h"
#include "train/doctor/check.h"
#include "train/doctor/machine_files.h"

namespace penstock::train {

struct GpuFacts {
  std::vector<std::string> models;          ///< that the driver lists
  std::optional<std::string> driver;        ///< its version, "535.104.05"
  int built_cuda = 0;                       ///< as device::BuiltCudaVersion
  Result<Bytes> free_memory;                ///< of the first GPU, as device::FreeCudaMemory
  std::optional<int> nccl;                  ///< version as NCCL writes it (22304: 2.23.4)
  std::vector<std::string> nccl_variables;  ///< "NCCL_DEBUG=INFO"

  /// What `train` computes on unless it is told: it asks for the free memory in the same way.
  device::Kind device() const {
    return free_memory.ok() ? device::Kind::kCuda : device::Kind::kCpu;
  }
};
GpuFacts ReadGpuFacts(const MachineFiles& files);

/// Returns the oldest driver that programs of this version of CUDA run with, and "" for versions
/// that are not known. Source: NVIDIA's "CUDA Compatibility", minor version compatibility.
std::string OldestDriver(int cuda);

/// Whether version `a` is older than `b`: "470.57.02" and "525.60.13".
bool IsOlder(const std::string& a, const std::string& b);

Checks GpuChecks(const GpuFacts& facts);

/// Returns the variables of the environment that begin with "NCCL_", sorted.
std::vector<std::string> NcclVariables();

}  // namespace penstock::train
