// The command line of the program that comes with the Python package: the tools alone.
//
// Threads: the main thread.
#pragma once

namespace penstock::train {

/// Runs a command; returns the exit code. A command that needs a model that computes (train,
/// replay, launch) is refused with a line that says where it is.
int RunToolsLine(int argc, const char* const* argv) noexcept;

}  // namespace penstock::train
