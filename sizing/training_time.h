// How long a training takes, in days, GPU hours and steps.
//
// Pure functions. Threads: any.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace penstock::train {

struct TrainingTime {
  uint64_t steps = 0;  ///< 0 where no batch was given
  double days = 0;
  double gpu_hours = 0;
};

/// A training by its size and the speed of its GPUs.
struct TrainingSize {
  double parameters = 0;
  double tokens = 0;
  uint64_t gpus = 1;
  double tflops = 0;         ///< of a GPU, with recomputation counted if `recompute`
  bool recompute = true;     ///< 8 FLOPs for each parameter and token; 6 without
  uint64_t step_tokens = 0;  ///< of a step; 0: not known, and no steps are counted
};

/// Returns 8 · parameters · tokens / (gpus · tflops): Narayanan et al. 2021, equation 4.
TrainingTime TimeBySpeed(const TrainingSize& size);

/// Returns the time of so many tokens in steps of `step_tokens` tokens (at least 1) and `step_s`
/// seconds. Steps are the nearest whole number of them.
TrainingTime TimeBySteps(double tokens, uint64_t step_tokens, double step_s, uint64_t gpus);

/// Returns "71526 steps, 84.5 days, 778432 GPU hours": one line without a line break.
std::string TrainingTimeText(const TrainingTime& time);
/// Returns {"steps", "days", "gpu_hours"}; "steps" is null where they are not known.
nlohmann::json TrainingTimeJson(const TrainingTime& time);

}  // namespace penstock::train
