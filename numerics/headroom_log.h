// Decides which steps' max magnitudes go into RUN/headroom.jsonl, and makes and reads its lines
// (docs/numerics.md).
//
// Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "numerics/step_numbers.h"

namespace penstock::train {

class HeadroomLog {
 public:
  /// Returns the step's line without its line break, if it is the first, or differs from the last
  /// one by kHeadroomChange or more in some layer; nothing too if nothing is known of the layers.
  std::optional<std::string> Step(const StepNumbers& numbers);

 private:
  std::vector<LayerNumbers> written_;
};

/// A line that was read.
struct HeadroomRow {
  uint64_t step = 0;
  std::vector<LayerNumbers> layers;  ///< nullopt in place of null
};

/// Returns nothing if the text is no such line.
std::optional<HeadroomRow> ParseHeadroomRow(std::string_view line);

}  // namespace penstock::train
