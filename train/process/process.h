// Prepares the process before the program begins: descriptors, a stack, signals, environment.
//
// Threads: the main thread, before another is started.
#pragma once

#include "base/result.h"

namespace penstock::train {

/// Prepares the process for the program:
/// - Standard descriptors that are closed lead to /dev/null. Otherwise the next files that are
///   opened would take their numbers, and log lines would be written into them.
/// - A write to a pipe without readers, or beyond the limit of the size of files, is an error of
///   that write and not a signal.
/// - The main thread's stack may grow to 2 MiB at least, and other threads have as much, even if
///   the limit (ulimit -s) is lower.
/// - OpenMP's workers wait without spinning; for that, the program restarts itself with `argv`.
/// - An exception that ends a thread ends the program with a line and an exit code.
/// Errors: kUnavailable if the limit of the stack cannot be raised.
Status PrepareProcess(char** argv);

}  // namespace penstock::train
