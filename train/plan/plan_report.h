// A plan for people, and for programs (docs/plan.md).
//
// Threads: any.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "config/config.h"
#include "sizing/model_shape.h"
#include "train/plan/plan_rates.h"
#include "train/plan/run_plan.h"

namespace penstock::train {

/// What a plan is of.
struct PlannedSetup {
  std::string model;   ///< as it was named
  std::string device;  ///< "cpu", "cuda"
  std::string speeds;  ///< where they come from, in words
  const config::Config& config;
  uint64_t sequence = 0;
  PlanQuestions questions = {};
  std::optional<ModelShape> shape = {};  ///< if it is known
  bool stands_in = false;                ///< activations are those of another family
};

/// The fields of `plan --json`; numbers that are not known are null.
nlohmann::ordered_json ToJson(const PlannedSetup& setup, const RunPlan& plan);

std::string ToText(const PlannedSetup& setup, const RunPlan& plan);

}  // namespace penstock::train
