// What this program is: version, commit, compiler, the instruction sets that it uses here.
//
// Threads: any.
#pragma once

#include <span>

#include "train/doctor/check.h"

namespace penstock::train {

/// Returns the commit that the program was built from, "-dirty" behind it if files had changed
/// since; "unknown" where git did not say. (cmake/program_commit.cmake writes the source of this
/// function.)
const char* ProgramCommit();

Check ProgramCheck();

/// `targets`: as VectorTargets returns them; `x86`: whether AVX2 is what to expect.
Check SimdCheck(std::span<const char* const> targets, bool x86);

/// The checks of this program on this machine.
Checks ProgramChecks();

}  // namespace penstock::train
