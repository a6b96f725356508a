// What a rank tells the others with every step: a few numbers of the front end's, which travel with
// the gradient norm.
#pragma once

#include <array>
#include <cstddef>

namespace penstock::zero {

inline constexpr size_t kStepNoteSize = 15;
using StepNote = std::array<double, kStepNoteSize>;

}  // namespace penstock::zero
