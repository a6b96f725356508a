// The instruction sets that kernels are compiled for.
#pragma once

#include <span>

namespace penstock::kernels {

/// The instruction sets that every kernel of this build can be dispatched to on this machine, best
/// first ("AVX3", "AVX2", …).
std::span<const char* const> VectorTargets();

}  // namespace penstock::kernels
