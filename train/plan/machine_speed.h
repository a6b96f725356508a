// How fast a machine does what a step of one rank consists of: a rank's part of a node that several
// share. Nothing: it is not known. A step's time is then not predicted, but for copies and link,
// which take no time in it.
//
// Plain values.
#pragma once

#include <optional>

#include "sim/drive.h"
#include "sim/link.h"

namespace penstock::train {

struct MachineSpeed {
  double cores = 1;
  /// Operations a second of the kernels: of layers and of the head.
  std::optional<double> layer_flops;
  std::optional<double> head_flops;
  // Of one thread, in seconds.
  sim::Seconds update_element = 0;
  sim::Seconds norm_element = 0;          ///< block sums
  std::optional<sim::Seconds> copy_byte;  ///< between device and host; on a GPU, of the bus
  sim::Seconds io_byte = 0;               ///< of the processor, for a byte that is read or written
  std::optional<sim::DriveSpeed> drive;
  std::optional<sim::LinkSpeed> link;  ///< between ranks
};

}  // namespace penstock::train
