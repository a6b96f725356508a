// How the threads of this module present themselves to the system.
#pragma once

namespace penstock::aio {

/// Names the calling thread (at most 15 characters) and leaves all signals to the program's own
/// threads, so that an interrupt neither runs a handler here nor cuts a transfer short.
void EnterIoThread(const char* name);

}  // namespace penstock::aio
