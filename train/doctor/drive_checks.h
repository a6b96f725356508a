// Whether a drive is one to train on, from what was read of it (train/doctor/drive_facts.h).
//
// Threads: any.
#pragma once

#include "base/result.h"
#include "base/units.h"
#include "train/doctor/check.h"
#include "train/doctor/drive_facts.h"
#include "train/doctor/machine_files.h"

namespace penstock::train {

Check FolderCheck(const DriveFacts& facts);
Check DriveKindCheck(const DriveFacts& facts);
Check FileSystemCheck(const DriveFacts& facts);
/// `alignment`: of a file in the folder that was opened with O_DIRECT, or why none could be.
Check DirectCheck(const Result<Bytes>& alignment);
Check SpaceCheck(const DriveFacts& facts);
Check QueueCheck(const DriveFacts& facts, const MachineFiles& files);
/// The IOMMU mode of the group that a drive is in (the kernel's sysfs-kernel-iommu_groups).
Check IommuCheck(const DriveFacts& facts, const MachineFiles& files);

/// All of these but the folder's, for one that can be written to. Makes a file without a name
/// there.
Checks DriveChecks(const DriveFacts& facts, const MachineFiles& files);

}  // namespace penstock::train
