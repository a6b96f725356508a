// How fast the drives below folders are, each of which counts once however many folders and file
// systems lie on it.
//
// Plain values; threads: any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/doctor/drive_facts.h"

namespace penstock::train {

/// A folder that was looked at.
struct SeenFolder {
  DriveFacts facts;
  std::optional<double> gbps = {};  ///< measured in it, with both directions in turn
};
using SeenFolders = std::vector<SeenFolder>;

const SeenFolder* FindFolder(const SeenFolders& seen, const std::string& folder);

/// Returns a folder in which the speed of this drive was measured: it lies on the same file system
/// or on just the same disks. Null if there is none.
const SeenFolder* MeasuredOn(const SeenFolders& seen, const DriveFacts& facts);

/// Returns why a folder's drive is not to be measured; empty if it is.
std::string WhyNotMeasured(const DriveFacts& facts, const SeenFolders& seen);

/// Returns the speed, in GB/s, of all drives of these folders together. Of folders that have a disk
/// in common, the fastest counts alone. Nothing if there is no folder, or if a drive was not
/// measured.
std::optional<double> SpeedTogether(const SeenFolders& seen,
                                    const std::vector<std::string>& folders);

}  // namespace penstock::train
