// The environment of a rank: its number, where the ranks meet, and no variables of another
// launcher.
//
// Pure functions; any thread. Variables are written "NAME=value", as in environ(7).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "train/launch/hostfile.h"

namespace penstock::train {

/// Where rank 0 listens, and the secret by which it recognises the others.
struct MeetingPoint {
  std::string address;
  uint16_t port = 0;
  std::string token = {};
};

/// Returns the variable of the job's token (comm/environment.h), "NAME=value". It is not among
/// RankVariables, because ssh's command is visible in process lists of the other host.
std::string TokenVariable(const MeetingPoint& meeting);

/// Returns RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT of a rank.
std::vector<std::string> RankVariables(const RankPlace& place, uint32_t ranks,
                                       const MeetingPoint& meeting);

/// Returns the environment without the variables of mpirun, srun and torchrun, which would
/// contradict RankVariables.
std::vector<std::string> WithoutLaunchers(std::span<const std::string> environment);

/// Returns the variables that ranks on other hosts also get: NCCL's, which must be the same on all.
std::vector<std::string> VariablesForAllHosts(std::span<const std::string> environment);

}  // namespace penstock::train
