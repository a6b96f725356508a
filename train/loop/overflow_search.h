// Recomputes a skipped step with every operator checked, and names the first non-finite value.
//
// Collective: all ranks search together, because the step needs all of them. Each finds its own
// first value. The first value of the step is the earliest in the order of computation; if ranks
// found it in the same tensor, that of the lowest micro-batch of the global batch.
// Threads: the one that feeds the compute stream.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "numerics/step_numbers.h"
#include "train/models/checked_operators.h"
#include "train/models/model.h"
#include "zero/session/session.h"
#include "zero/step_note.h"

namespace penstock::train {

class OverflowSearch {
 public:
  struct Parts {
    zero::Session& session;
    Model& model;
    CheckedOperators& operators;
    /// With several ranks: sends a note to all, and returns those of all, by rank.
    std::function<Result<std::vector<zero::StepNote>>(const zero::StepNote& note)> exchange;
  };
  /// `dtype`: of weights and gradients; `sequence`: tokens of a row.
  OverflowSearch(Parts parts, DType dtype, uint64_t sequence, comm::World world)
      : parts_(std::move(parts)), dtype_(dtype), sequence_(sequence), world_(world) {}

  /// Recomputes the last skipped step. `loss_is_finite`: its loss was finite; `row_of` maps row `i`
  /// of a micro-batch of this rank to a row of the data. Returns nothing if every tensor was
  /// finite. Errors: of the device and of other ranks.
  Result<std::optional<FirstNonFinite>> Run(
      std::span<const int32_t> inputs, std::span<const int32_t> targets, bool loss_is_finite,
      const std::function<uint64_t(uint64_t micro_batch, uint64_t i)>& row_of);

 private:
  Result<std::optional<CheckedOperators::Finding>> Compute(std::span<const int32_t> inputs,
                                                           std::span<const int32_t> targets);
  /// Returns the rank with the first finding, and its micro-batch and row.
  Result<zero::StepNote> FirstOfAll(const std::optional<CheckedOperators::Finding>& mine,
                                    uint64_t row);

  Parts parts_;
  const DType dtype_;
  const uint64_t sequence_;
  const comm::World world_;
};

}  // namespace penstock::train
