// What to do about what was found: the table of docs/numerics.md, for the lines and for
// RUN/overflow.json.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/numerics/report.h"

namespace penstock::train {

/// What advice depends on beside the report.
struct Situation {
  DType dtype = DType::kFloat32;
  bool dynamic_loss_scale = false;
  /// The update that made the weights infinite, NaN, or far larger than before, if one did.
  std::optional<uint64_t> broken_by = {};
  /// The run has ended by it: what would mend itself did not.
  bool ended = false;
};

/// Returns what to do about a report of this kind, as an instruction without a full stop; `pass`
/// says where.
std::string Advice(ReportKind kind, const std::optional<Pass>& pass, const Situation& situation);

}  // namespace penstock::train
