#include "kernels/state/optimizer.h"

#include "base/check.h"
#include "kernels/state/optimizer_rule.h"

namespace penstock::kernels {
namespace {

/// The rule that hyperparameters belong to.
template <typename Hyperparameters>
struct RuleOf;
template <>
struct RuleOf<AdamHyperparameters> : Rule<AdamScalars> {};
template <>
struct RuleOf<LionHyperparameters> : Rule<LionScalars> {};
template <>
struct RuleOf<AdagradHyperparameters> : Rule<AdagradScalars> {};
template <>
struct RuleOf<LambHyperparameters> : Rule<LambScalars> {};

AdamScalars Make(const AdamHyperparameters& hyper, double lr, uint64_t t, double grad_scale) {
  return MakeAdamScalars(hyper, lr, t, grad_scale);
}

LionScalars Make(const LionHyperparameters& hyper, double lr, uint64_t, double grad_scale) {
  return MakeLionScalars(hyper, lr, grad_scale);
}

AdagradScalars Make(const AdagradHyperparameters& hyper, double lr, uint64_t t, double grad_scale) {
  return MakeAdagradScalars(hyper, lr, t, grad_scale);
}

LambScalars Make(const LambHyperparameters& hyper, double lr, uint64_t t, double grad_scale) {
  return MakeLambScalars(hyper, lr, t, grad_scale);
}

void UpdateBy(const AdamScalars& scalars, const OptimizerTile& tile,
              std::span<WeightFigures> of_blocks) {
  AdamUpdate(scalars, tile, of_blocks);
}
void UpdateBy(const LionScalars& scalars, const OptimizerTile& tile,
              std::span<WeightFigures> of_blocks) {
  LionUpdate(scalars, tile, of_blocks);
}
void UpdateBy(const AdagradScalars& scalars, const OptimizerTile& tile,
              std::span<WeightFigures> of_blocks) {
  AdagradUpdate(scalars, tile, of_blocks);
}
void UpdateBy(const LambScalars& scalars, const OptimizerTile& tile,
              std::span<WeightFigures> of_blocks) {
  LambUpdate(scalars, tile, of_blocks);
}

const LambScalars& TrustedScalars(const OptimizerScalars& scalars) {
  const auto* const lamb = std::get_if<LambScalars>(&scalars);
  PENSTOCK_CHECK(lamb != nullptr, "a rule without a trust ratio was asked for its sums");
  return *lamb;
}

}  // namespace

RuleMoments MomentsOf(const OptimizerHyperparameters& hyper) {
  return std::visit(
      []<typename Hyperparameters>(const Hyperparameters&) {
        using R = RuleOf<Hyperparameters>;
        return RuleMoments{.exp_avg = R::kExpAvg, .exp_avg_sq = R::kExpAvgSq};
      },
      hyper);
}

double WeightDecay(const OptimizerHyperparameters& hyper) {
  return std::visit([](const auto& of_rule) { return of_rule.weight_decay; }, hyper);
}

OptimizerHyperparameters WithoutDecay(OptimizerHyperparameters hyper) {
  std::visit([](auto& of_rule) { of_rule.weight_decay = 0; }, hyper);
  return hyper;
}

OptimizerScalars MakeScalars(const OptimizerHyperparameters& hyper, double lr, uint64_t t,
                             double grad_scale) {
  return std::visit(
      [&](const auto& of_rule) -> OptimizerScalars { return Make(of_rule, lr, t, grad_scale); },
      hyper);
}

bool HasTrustRatio(const OptimizerHyperparameters& hyper) {
  return std::holds_alternative<LambHyperparameters>(hyper);
}

void SumForTrust(const OptimizerScalars& scalars, const OptimizerTile& tile,
                 std::span<TrustSums> of_blocks) {
  LambSums(TrustedScalars(scalars), tile, of_blocks);
}

OptimizerScalars WithTrust(const OptimizerScalars& scalars, const TrustSums& of_tensor) {
  const LambScalars& lamb = TrustedScalars(scalars);
  return WithTrustRatio(lamb, TrustRatio(lamb, of_tensor));
}

void Update(const OptimizerScalars& scalars, const OptimizerTile& tile,
            std::span<WeightFigures> of_blocks) {
  std::visit([&](const auto& of_rule) { UpdateBy(of_rule, tile, of_blocks); }, scalars);
}

}  // namespace penstock::kernels
