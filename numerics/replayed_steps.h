// The data that a replay keeps of its steps for the conclusion (numerics/conclusion.h).
//
// A step keeps only the most informative tensors, so that many steps of a large model fit in
// memory. Threads: one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "numerics/non_finite.h"
#include "numerics/report.h"
#include "numerics/step_numbers.h"

namespace penstock::train {

/// What is kept of a step's update.
struct ReplayedUpdate {
  double largest = 0;      ///< rms of a tensor's update over that of its weights before
  std::string largest_of;  ///< name of that tensor
  uint64_t too_large = 0;  ///< tensors whose update is larger than the detectors allow
  std::optional<std::string> broken = {};  ///< first tensor with non-finite or huge weights
  double largest_weight = 0;               ///< magnitude, in that tensor; else in any
};

struct ReplayedStep {
  uint64_t step = 0;
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  double loss_scale = 1;
  bool skipped = false;
  std::vector<uint64_t> rows = {};            ///< known rows of the data
  std::optional<NonFinitePlace> first = {};   ///< the first non-finite value, if any
  std::optional<ReplayedUpdate> update = {};  ///< nullopt: skipped or not known
};

class ReplayedSteps {
 public:
  /// Call this before the first step, and again if other steps of the same model follow.
  void Begin(const RunFacts& facts) { facts_ = facts; }
  void Add(const StepNumbers& numbers);
  /// Adds the update of a step that was added.
  void Add(const UpdateNumbers& numbers);
  void Add(const Report& report) { reports_.push_back(report); }
  /// Removes the steps after `last`, and what was reported of them.
  void CutAfter(uint64_t last);

  const RunFacts& facts() const { return facts_; }
  const std::vector<ReplayedStep>& steps() const { return steps_; }
  const std::vector<Report>& reports() const { return reports_; }

 private:
  RunFacts facts_;
  std::vector<ReplayedStep> steps_;
  std::vector<Report> reports_;
};

}  // namespace penstock::train
