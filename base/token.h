// A shared secret of the processes of one run, so that no other process can join.
//
// Any thread.
#pragma once

#include <string>

#include "base/result.h"

namespace penstock {

/// The variable of the environment in which the ranks of a job find theirs.
inline constexpr const char* kTokenVariable = "PENSTOCK_JOB_TOKEN";

/// Returns 128 bits of the kernel's random source as 32 hexadecimal digits. Errors: what the system
/// says.
Result<std::string> MakeToken();

}  // namespace penstock
