// The scalars of one step's updates: those of the rule for each parameter group, and the key of
// stochastic rounding. A plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "config/config.h"
#include "kernels/state/optimizer.h"
#include "offload/layout.h"
#include "zero/lr_schedule.h"
#include "zero/model.h"

namespace penstock::zero {

class UpdateScalars {
 public:
  UpdateScalars() = default;
  /// Of each group. `t` counts updates from 1. `betas`, if there are any, take the place of those
  /// of every group whose rule has betas.
  UpdateScalars(const std::vector<GroupSpec>& groups, const config::OptimizerConfig& optimizer,
                uint64_t seed, double lr, uint64_t t, double grad_scale,
                const std::optional<Betas>& betas = {});

  const kernels::OptimizerScalars& Of(const offload::TileLayout& tile) const {
    return groups_[offload::Index(tile.group)];
  }
  /// Sets the sums of squares of every tensor (TrustBlocks::ByTensor), for rules with trust ratios.
  void SetTrust(std::vector<kernels::TrustSums> of_tensors);
  bool has_trust() const { return trust_ != nullptr; }
  /// Returns the scalars of a tensor's elements in the tile: with its trust ratio, once the sums
  /// are set. `tensor` counts those of all modules.
  kernels::OptimizerScalars Of(const offload::TileLayout& tile, size_t tensor) const {
    return trust_ ? kernels::WithTrust(Of(tile), (*trust_)[tensor]) : Of(tile);
  }
  /// Returns how the tile's bf16 moments are rounded: a function of seed, t, module and element.
  kernels::StochasticRounding RoundingOf(const offload::TileLayout& tile) const;

 private:
  std::vector<kernels::OptimizerScalars> groups_;
  std::shared_ptr<const std::vector<kernels::TrustSums>> trust_;  ///< by tensor
  uint64_t seed_ = 0;
  uint64_t t_ = 0;
};

}  // namespace penstock::zero
