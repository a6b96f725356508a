// What the process is given before the program begins: descriptors, a stack, signals, environment.
//
// Threads: the main thread, before there is another.
#pragma once

#include "base/result.h"

namespace penstock::train {

/// Makes the process one that the program can run in:
/// - Standard descriptors that are closed lead to /dev/null. The next files that are opened would
///   otherwise take their numbers, and what is logged would be written into them.
/// - A write to a pipe that nobody reads, or beyond the limit of the size of files, is an error of
///   that write and no signal.
/// - The main thread's stack may grow to 2 MiB at least, and other threads have as much, where the
///   limit (ulimit -s) gives them less.
/// - OpenMP's workers wait without spinning, for which the program starts itself anew with `argv`.
/// - What ends a thread by an exception ends the program with a line and an exit code.
/// Errors: kUnavailable, where the limit of the stack cannot be raised.
Status PrepareProcess(char** argv);

}  // namespace penstock::train
