// How many threads compute and update, and which CPUs they and the I/O threads run on.
//
// On the CPU device a team that meets behind each operator is as slow as its slowest thread, so
// that an update beside one of its threads slows all of them; but a core that nothing computes on
// is lost but for the few per cent of the machine that updates need. On a GPU's host computation
// needs no core, and the optimizer all it can get. docs/architecture.md (Threads) has the whole
// reasoning.
#pragma once

#include <string>
#include <vector>

#include "base/topology.h"
#include "device/device.h"
#include "offload/placement.h"
#include "zero/config.h"

namespace penstock::zero {

struct ThreadCounts {
  int compute = 0;    ///< 0: the program's choice; of the CPU device
  int optimizer = 0;  ///< 0: the program's choice
};

/// CPUs of threads; none: anywhere.
struct ThreadPlan {
  ThreadCounts counts;
  std::vector<int> compute;
  std::vector<int> optimizer;
  std::vector<std::vector<int>> io;  ///< of each path
  std::string notice;                ///< what was decided and why, on one line
};

/// Three sets that have no CPU in common, each on cores near what its threads work on; where there
/// are too few cores for that, or a container has less time than they would take, threads share
/// them, and the notice says why. Host memory and the drives lie where `placement` says, which has
/// the paths that steps use. Plain function; the counts of the CPU device do not depend on
/// `placement`.
ThreadPlan PlanThreads(const Topology& topology, device::Kind kind, ThreadCounts wanted,
                       const offload::Placement& placement);

/// What the kernel refuses becomes "anywhere", and the notice says so.
void LeaveOutRefused(ThreadPlan& plan);

/// Fills in the counts that `config` leaves to the program and that can be known before the device
/// is: on a GPU's host that of the optimizer depends on where the GPU hangs, and stays open.
void ChooseThreads(const Topology& topology, device::Kind kind, Config* config);

}  // namespace penstock::zero
