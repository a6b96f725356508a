// The optimizer rules in all their modes, for tests that hold for each of them.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/state/optimizer.h"

namespace penstock::kernels {

/// One step of one rule in one mode: its scalars are bound.
struct OptimizerStep {
  std::string name;
  OptimizerScalars scalars;
  bool exp_avg;
  bool exp_avg_sq;
  std::function<void(const OptimizerTile&)> update;
  std::function<void(const OptimizerTile&)> reference;
};

inline void PrintTo(const OptimizerStep& step, std::ostream* out) { *out << step.name; }

inline std::vector<AdamHyperparameters> AllAdamModes() {
  std::vector<AdamHyperparameters> modes;
  for (const bool adam_w : {true, false}) {
    for (const double decay : {0.0, 0.1}) {
      for (const bool correction : {true, false}) {
        modes.push_back({.beta1 = 0.9,
                         .beta2 = 0.999,
                         .eps = 1e-8,
                         .weight_decay = decay,
                         .adam_w_mode = adam_w,
                         .bias_correction = correction});
      }
    }
  }
  return modes;
}

inline OptimizerStep AdamStep(const AdamHyperparameters& hyper, double lr, uint64_t t,
                              double scale) {
  const AdamScalars s = MakeAdamScalars(hyper, lr, t, scale);
  return {std::string(hyper.adam_w_mode ? "AdamW" : "Adam") +
              (hyper.weight_decay == 0 ? "" : ", decay") +
              (hyper.bias_correction ? ", bias correction" : "") + ", step " + std::to_string(t),
          s,
          true,
          true,
          [s](const OptimizerTile& tile) { AdamUpdate(s, tile); },
          [s](const OptimizerTile& tile) { AdamUpdateReference(s, tile); }};
}

inline OptimizerStep LionStep(const LionHyperparameters& hyper, double lr, double scale) {
  const LionScalars s = MakeLionScalars(hyper, lr, scale);
  return {std::string("Lion") + (hyper.weight_decay == 0 ? "" : ", decay"),
          s,
          true,
          false,
          [s](const OptimizerTile& tile) { LionUpdate(s, tile); },
          [s](const OptimizerTile& tile) { LionUpdateReference(s, tile); }};
}

inline OptimizerStep AdagradStep(const AdagradHyperparameters& hyper, double lr, uint64_t t,
                                 double scale) {
  const AdagradScalars s = MakeAdagradScalars(hyper, lr, t, scale);
  return {std::string("Adagrad") + (hyper.weight_decay == 0 ? "" : ", decay") + ", step " +
              std::to_string(t),
          s,
          false,
          true,
          [s](const OptimizerTile& tile) { AdagradUpdate(s, tile); },
          [s](const OptimizerTile& tile) { AdagradUpdateReference(s, tile); }};
}

inline OptimizerStep LambStep(const LambHyperparameters& hyper, double lr, uint64_t t,
                              double scale) {
  const LambScalars s = WithTrustRatio(MakeLambScalars(hyper, lr, t, scale), 0.8);
  return {std::string("Lamb") + (hyper.weight_decay == 0 ? "" : ", decay") +
              (hyper.bias_correction ? ", bias correction" : "") + ", step " + std::to_string(t),
          s,
          true,
          true,
          [s](const OptimizerTile& tile) { LambUpdate(s, tile); },
          [s](const OptimizerTile& tile) { LambUpdateReference(s, tile); }};
}

/// Every rule in every mode, at the first step and a late one.
inline std::vector<OptimizerStep> AllSteps(double lr, double scale) {
  std::vector<OptimizerStep> steps;
  for (const uint64_t t : {uint64_t{1}, uint64_t{100000}}) {
    for (const AdamHyperparameters& hyper : AllAdamModes()) {
      steps.push_back(AdamStep(hyper, lr, t, scale));
    }
    for (const double decay : {0.0, 0.1}) {
      steps.push_back(AdagradStep({.lr_decay = 1e-3, .weight_decay = decay}, lr, t, scale));
      steps.push_back(LambStep({.weight_decay = decay}, lr, t, scale));
    }
  }
  for (const double decay : {0.0, 0.1}) {
    steps.push_back(LionStep({.weight_decay = decay}, lr, scale));
  }
  return steps;
}

/// One step of each rule, with decay.
inline std::vector<OptimizerStep> OneStepOfEachRule() {
  return {AdamStep({.weight_decay = 0.01}, 1e-3, 3, 0.5),
          LionStep({.weight_decay = 0.01}, 1e-3, 0.5),
          AdagradStep({.weight_decay = 0.01}, 1e-3, 3, 0.5),
          LambStep({.weight_decay = 0.01}, 1e-3, 3, 0.5)};
}

}  // namespace penstock::kernels
