// The advice for a finding: the table of docs/numerics.md, for the lines and for RUN/overflow.json.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "numerics/report.h"

namespace penstock::train {

/// What advice depends on beside the report.
struct Situation {
  DType dtype = DType::kFloat32;
  bool dynamic_loss_scale = false;
  /// The update that made the weights infinite, NaN, or far larger than before, if one did.
  std::optional<uint64_t> broken_by = {};
  /// The run ended because of it: nothing corrected it.
  bool ended = false;
};

/// How a run ended whose numbers ended it.
struct NumericEnd {
  DType dtype = DType::kFloat32;
  bool forward_finite = true;  ///< whether the last step's forward was finite
  /// Whether the run has updated the weights: else they are as they were given to it.
  bool updated = true;
  /// Only with fp16: the gradient of the last step is zero.
  bool zero_gradient = false;
  double static_scale = 0;  ///< fp16.loss_scale; 0: dynamic, or none
  double min_scale = 0;     ///< min of a dynamic scale at its min; 0: none, or it can go lower
};

/// Returns the remedy for a run that ended like this, unless a lower learning rate is one: the loss
/// scale or the weights are at fault, which that does not change. Empty if it may.
std::string OtherRemedy(const NumericEnd& end);

/// Returns what to do about a report of this kind, as an instruction without a full stop; `pass`
/// says where.
std::string Advice(ReportKind kind, const std::optional<Pass>& pass, const Situation& situation);

}  // namespace penstock::train
