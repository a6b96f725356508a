// D10: the last steps of a run, for RUN/overflow.json (docs/numerics.md has its format).
//
// Threads: one.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "numerics/report.h"
#include "numerics/step_numbers.h"

namespace penstock::train {

/// How a run ended.
struct StopInfo {
  uint64_t step = 0;
  std::string line;  ///< the line that it ended with
  std::optional<Report> first_cause = {};
  std::string advice;
};

class BlackBox {
 public:
  /// Keeps the last kBlackBoxSteps steps, with the update of each if it has ended.
  void Add(const StepNumbers& numbers);
  /// An update of a step that is not kept is ignored.
  void Add(const UpdateNumbers& numbers);

  /// Returns the text of the file.
  std::string ToJson(const RunFacts& facts, const StopInfo& stop) const;

 private:
  struct Kept {
    StepNumbers step;
    std::optional<UpdateNumbers> update = {};
  };
  std::deque<Kept> steps_;
};

}  // namespace penstock::train
