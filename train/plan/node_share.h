// What a rank takes of its node where several ranks run on it: processors, and a GPU.
//
// Threads: the main thread, before the program computes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/topology.h"
#include "comm/job.h"

namespace penstock::train {

struct NodeShare {
  uint32_t sharing = 1;  ///< ranks that run on the same processors, this one among them
  bool bound = true;     ///< false: the process, which plans one of them, has the processors of all
  /// The least number of compute threads that a rank would choose by itself; none: there is one
  /// rank. How many there are decides the order of sums, so all ranks take as many.
  std::optional<int> most_compute_threads;
};

/// Divides the processors of a node among the ranks that may run on the same ones, and binds this
/// process to its part. A launcher that has bound each rank to its own has done that already.
/// Collective. Errors: of the job.
Result<NodeShare> ShareProcessors(comm::Job& job);

/// Returns the part of cores that one of `ranks` ranks has, in the order of their numbers: as
/// nearly equal parts as there are, or one core with others if there are fewer cores than ranks.
std::vector<Core> PartOf(const std::vector<Core>& cores, uint32_t rank, uint32_t ranks);

/// Returns the value that CUDA_VISIBLE_DEVICES gets on the rank of a node, which computes on a GPU
/// of its own: the first that CUDA lists. None: it stays as it is, because it shows no GPU, or
/// fewer than there are ranks (a launcher that shows each rank one has chosen already).
std::optional<std::string> VisibleGpu(const std::optional<std::string>& visible,
                                      uint32_t local_rank);

/// Sets it, and has CUDA load all kernels when it starts, unless CUDA_MODULE_LOADING is set: a
/// kernel that is loaded by its first launch may wait until the GPU is idle, which a collective
/// that waits for this rank prevents. To be called before CUDA starts.
void PrepareCuda(const comm::Environment& environment, uint32_t local_rank);

}  // namespace penstock::train
