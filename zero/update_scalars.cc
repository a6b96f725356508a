#include "zero/update_scalars.h"

#include <utility>
#include <variant>

#include "base/check.h"
#include "base/random.h"

namespace penstock::zero {
namespace {

void SetBetas(const Betas& betas, kernels::OptimizerHyperparameters* hyper) {
  std::visit(
      [&betas](auto& rule) {
        if constexpr (requires { rule.beta1, rule.beta2; }) {
          rule.beta1 = betas.beta1;
          rule.beta2 = betas.beta2;
        }
      },
      *hyper);
}

}  // namespace

UpdateScalars::UpdateScalars(const std::vector<GroupSpec>& groups,
                             const config::OptimizerConfig& optimizer, uint64_t seed, double lr,
                             uint64_t t, double grad_scale, const std::optional<Betas>& betas)
    : seed_(seed), t_(t) {
  for (const GroupSpec& group : groups) {
    kernels::OptimizerHyperparameters hyper = group.hyper.value_or(optimizer.hyper);
    PENSTOCK_CHECK(kernels::HasTrustRatio(hyper) == kernels::HasTrustRatio(optimizer.hyper),
                   "a parameter group takes two passes and another one");
    if (betas) SetBetas(*betas, &hyper);
    if (!group.weight_decay) hyper = kernels::WithoutDecay(hyper);
    groups_.push_back(
        kernels::MakeScalars(hyper, group.lr.value_or(lr * group.lr_factor), t, grad_scale));
  }
}

void UpdateScalars::SetTrust(std::vector<kernels::TrustSums> of_tensors) {
  trust_ = std::make_shared<const std::vector<kernels::TrustSums>>(std::move(of_tensors));
}

kernels::StochasticRounding UpdateScalars::RoundingOf(const offload::TileLayout& tile) const {
  const auto words = Philox(seed_, t_, offload::Index(tile.module));
  return {.key = words[0] | uint64_t{words[1]} << 32, .first_element = tile.begin};
}

}  // namespace penstock::zero
