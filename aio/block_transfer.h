// Executes one block with one plain system call, or one copy within memory, on the calling thread.
#pragma once

#include <cstdint>

#include "aio/drive.h"

namespace penstock::aio {

/// preadv2, pwritev2 or fdatasync: the bytes transferred or a negative errno. Any thread.
int64_t Transfer(const BlockOperation& block);

}  // namespace penstock::aio
