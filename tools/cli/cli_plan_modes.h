// The questions of `penstock plan`, selected by its options: each uses some of the others. Unused
// options are refused, so that an answer cannot be misunderstood.
//
// Threads: the main thread.
#pragma once

#include <CLI/CLI.hpp>

#include "base/result.h"

namespace penstock::train {

/// Errors: kInvalidArgument for options that ask different questions, and for one that has no
/// effect on the answer.
Status CheckPlanOptions(const CLI::App& plan);

}  // namespace penstock::train
