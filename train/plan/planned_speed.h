// The speeds that a plan counts with: those that were given, and those that can be measured here in
// passing.
//
// Threads: the main thread, while nothing else computes.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "train/plan/budget.h"
#include "train/plan/machine_speed.h"

namespace penstock::train {

/// Bytes a second of a drive, as --drive gives them.
struct GivenDrive {
  double read_gbps = 0;  ///< 10^9 bytes a second
  double write_gbps = 0;
};

/// What was said on the command line; the configuration may say it as well (penstock.drive,
/// penstock.device_tflops).
struct GivenSpeed {
  std::optional<double> device_tflops = {};
  std::optional<GivenDrive> drive = {};
  std::string tune;  ///< a file that is among those of the configuration; empty: none
  /// GB/s (10^9 bytes) that a rank sends to others, and receives at the same time.
  std::optional<double> link_gbps = {};
};

struct PlannedSpeed {
  MachineSpeed machine;
  std::string origin;  ///< where each comes from, and what is missing, in words
};

/// Finds what is the same for every way to train the model on these nodes: the speeds of the device
/// and of the host, of which each rank of a node has its share. Errors: kInvalidArgument for a file
/// of --tune without speeds; kOutOfMemory.
Result<PlannedSpeed> FindSpeed(const GivenSpeed& given, const PlannedTraining& training);

/// Adds what depends on the training: the drives of its paths, of which each rank of a node has its
/// share, and the link between its ranks.
PlannedSpeed WithDriveAndLink(PlannedSpeed speed, const GivenSpeed& given,
                              const PlannedTraining& training);

/// The speeds that the configuration gives, with what is measured of the host in memory that the
/// training's limit has for it; nothing, if compute or a drive that the steps need is not among
/// them, or if there are several ranks, whose link is not known.
std::optional<MachineSpeed> SpeedOf(const PlannedTraining& training);

}  // namespace penstock::train
