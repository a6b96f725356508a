// What `penstock plan` can be asked for, by its options: each question makes use of some others.
// One that it would not use is refused, so that nobody takes an answer for what it is not.
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
