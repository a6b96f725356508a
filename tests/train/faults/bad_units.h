// Units of files that nobody can read: every pread of this program that meets one fails with EIO,
// whichever library made it, until the unit is written again.
//
// The source defines libc's calls for the program that it is linked into. The units are in memory
// that is shared with processes that are forked later. Threads: any, but for Share and Forget.
#pragma once

#include <cstdint>

#include "base/units.h"

namespace penstock::train {

/// Before the first fork. From then on the kernel refuses this process and its children io_uring
/// and AIO, whose reads are no calls of libc's.
void ShareBadUnits();
/// All units can be read again.
void ForgetBadUnits();
/// The unit of this file that holds the offset cannot be read from now on.
void AddBadUnit(int fd, FileOffset offset);

}  // namespace penstock::train
