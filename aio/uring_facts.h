// Which io_uring features the kernel and the sandbox allow. For reports; an engine asks by itself
// (aio/aio.h).
//
// Threads: any.
#pragma once

#include <string>
#include <vector>

namespace penstock::aio {

struct UringFacts {
  int error_number = 0;  ///< errno of io_uring_setup; 0: a ring can be made
  std::vector<std::string>
      features;  ///< names of IORING_FEAT_, without the prefix, in small letters
};

/// Makes a ring of one entry, and closes it.
UringFacts ReadUringFacts();

}  // namespace penstock::aio
