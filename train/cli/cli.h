// The program: reads the command line, runs the command, and prints its output.
//
// Threads: the main thread.
#pragma once

namespace penstock::train {

/// Runs the program and returns the exit code. Lets no exception out.
int RunCommandLine(int argc, const char* const* argv) noexcept;

}  // namespace penstock::train
