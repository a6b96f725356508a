// Measures a step: readings of clocks and counters, and the row that two readings make.
//
// Threads: any.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/activity.h"
#include "base/units.h"
#include "run/rows/metrics_file.h"
#include "train/plan/model_cost.h"
#include "zero/engine/engine.h"

namespace penstock::train {

inline double ToSeconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

/// A reading of everything that is measured, at one moment.
struct Reading {
  std::chrono::steady_clock::time_point time;
  ActivityTotals activity;
  zero::EngineCounters counters;
  Bytes device_peak;
  Bytes host_peak;
};

/// Sets everything that is measured in `row` (from step_s on) from the step's first and last
/// moment. Reads row->tokens. Peaks are those so far; everything else is for the time between.
void Measure(const Reading& begin, const Reading& end, const ModelCost& cost, StepRow* row);

/// Returns a loss for messages: four decimal places; "nan" for a NaN of either sign.
std::string LossText(double loss);

}  // namespace penstock::train
