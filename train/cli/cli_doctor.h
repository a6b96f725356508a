// The command line of `penstock doctor`.
//
// Threads: the main thread.
#pragma once

#include <CLI/CLI.hpp>

#include "train/doctor/doctor.h"

namespace penstock::train {

/// Adds the command, which fills in `options`.
CLI::App* AddDoctor(CLI::App& app, DoctorCommand* options);

}  // namespace penstock::train
