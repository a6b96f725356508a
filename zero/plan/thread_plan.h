// Decides how many threads compute and update, and on which CPUs they and the I/O threads run.
//
// On the CPU device a team that meets after each operator is as slow as its slowest thread, so an
// update beside one of its threads slows all of them. But a core on which nothing computes is
// mostly lost, because updates need only a few per cent of the machine. On a GPU's host computation
// needs no core, and the optimizer needs all that it can get. docs/architecture.md (Threads) has
// the whole reasoning.
#pragma once

#include <string>
#include <vector>

#include "base/topology.h"
#include "config/config.h"
#include "device/device.h"
#include "zero/plan/numa_placement.h"

namespace penstock::zero {

struct ThreadCounts {
  int compute = 0;    ///< of the CPU device; 0: the program chooses
  int optimizer = 0;  ///< 0: the program chooses
};

/// CPUs of threads; none: anywhere.
struct ThreadPlan {
  ThreadCounts counts;
  std::vector<int> compute;
  std::vector<int> optimizer;
  std::vector<std::vector<int>> io;  ///< of each path
  std::string notice;                ///< what was decided and why, on one line
};

/// Makes three sets that have no CPU in common, each on cores near what its threads work on. If
/// there are too few cores for that, or a container has less time than the threads would take,
/// threads share cores, and the notice says why. Host memory and the drives lie where `placement`
/// says, which has the paths that steps use. Plain function; the counts of the CPU device do not
/// depend on `placement`.
ThreadPlan PlanThreads(const Topology& topology, device::Kind kind, ThreadCounts wanted,
                       const NumaPlacement& placement);

/// Replaces each binding that the kernel refuses by "anywhere", and says so in the notice.
void LeaveOutRefused(ThreadPlan& plan);

/// Fills in the counts that `config` leaves to the program, as far as they can be known before the
/// device is. On a GPU's host the count of the optimizer depends on the node of the GPU, and stays
/// open.
void ChooseThreads(const Topology& topology, device::Kind kind, config::Config* config);

/// As ChooseThreads, for a run that is planned and not made: as if the GPU and the drives were near
/// all cores, so that the optimizer's count is known, too.
void AssumeThreads(const Topology& topology, device::Kind kind, config::Config* config);

}  // namespace penstock::zero
