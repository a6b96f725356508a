// Steps and rows for the tests of observers.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "run/observers/step_observer.h"

namespace penstock::train {

inline StepRow RowOfStep(uint64_t step) {
  StepRow row;
  row.step = step;
  row.loss = 10.0 / static_cast<double>(step);
  row.lr = 0.001 * static_cast<double>(step);
  row.tokens = 32;
  row.step_s = 1;
  return row;
}

/// A step of 8 rows.
inline ClosedRow Closed(const StepRow& row) {
  using std::chrono::seconds;
  const std::chrono::steady_clock::time_point end(seconds(row.step));
  return {.row = row, .samples = 8 * row.step, .begin = end - seconds(1), .end = end};
}

inline const zero::StepFigures kNoFigures;

/// A step that says that the commit of `doubted` is in doubt.
inline DoneStep Doubting(std::optional<uint64_t> doubted) {
  return {.numbers = {}, .figures = kNoFigures, .doubted_commit = doubted};
}

}  // namespace penstock::train
