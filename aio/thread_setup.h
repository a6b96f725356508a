// How the threads of this module are set up: name, signals, CPUs.
#pragma once

#include <vector>

#include "base/result.h"

namespace penstock::aio {

/// Names the calling thread (at most 15 characters) and leaves signals to the program's own
/// threads, so that an interrupt neither runs a handler here nor cuts a transfer short. Those that
/// a thread brings on itself (SIGSEGV, SIGABRT, …) stay open: a handler that reports them must run.
void EnterIoThread(const char* name);

/// Binds the calling thread, and those that it will start, to `cpus`; empty: leaves it as it is.
/// Errors: kInvalidArgument if none of them can be used here.
Status BindToCpus(const std::vector<int>& cpus);

}  // namespace penstock::aio
