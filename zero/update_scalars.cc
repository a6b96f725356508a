#include "zero/update_scalars.h"

#include "base/random.h"

namespace penstock::zero {

UpdateScalars::UpdateScalars(const OptimizerConfig& optimizer, uint64_t seed, double lr, uint64_t t,
                             double grad_scale)
    : groups_{kernels::MakeScalars(optimizer.hyper, lr, t, grad_scale),
              kernels::MakeScalars(kernels::WithoutDecay(optimizer.hyper), lr, t, grad_scale)},
      seed_(seed),
      t_(t) {}

kernels::StochasticRounding UpdateScalars::RoundingOf(const offload::TileLayout& tile) const {
  const auto words = Philox(seed_, t_, offload::Index(tile.module));
  return {.key = words[0] | uint64_t{words[1]} << 32, .first_element = tile.begin};
}

}  // namespace penstock::zero
