// `penstock launch`: starts the ranks of a training, on this host or on several.
//
// Threads: the main thread, while there is no other one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/launch/rank_fates.h"

namespace penstock::train {

struct LaunchCommand {
  uint32_t ranks = 1;                   ///< from 1 to kMaxRanks (train/launch/hostfile.h)
  std::string hostfile;                 ///< empty: all ranks run on this host
  std::optional<uint16_t> master_port;  ///< where rank 0 listens
  std::vector<std::string> arguments;   ///< arguments of every rank's program
};

/// What the calling program gives to a launch.
struct LaunchSetting {
  /// The program of every rank: this one.
  std::string program = "/proc/self/exe";
  Patience patience;  ///< time for ranks that run after one has failed
};

/// Runs the ranks to their end and returns the exit code of the launch: that of the first rank that
/// failed, 3 if a signal killed it or it could not be started, 130 if they were interrupted, 0 if
/// all ended with 0. From here on, the process takes its signals until it ends. Errors, before
/// anything is started: kInvalidArgument, kNotFound and kPermission for the hostfile;
/// kInvalidArgument for hosts that cannot reach rank 0; kUnavailable if its port is taken.
Result<int> RunLaunch(const LaunchCommand& command, const LaunchSetting& setting = {});

}  // namespace penstock::train
