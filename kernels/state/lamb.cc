// The scalars and the scalar reference. The vector code is in lamb_simd.cc.
#include "kernels/state/lamb.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "kernels/state/block_sums.h"
#include "kernels/state/optimizer_reference.h"

namespace penstock::kernels {
namespace {

float Direct(const LambScalars& s, float g, float& m, float& v) {
  m = std::fma(g, s.one_minus_beta1, m * s.beta1);
  v = std::fma(g * g, s.one_minus_beta2, v * s.beta2);
  return m / (std::sqrt(v) + s.eps);
}

double BlockSumReference(const std::array<float, kBlockElements>& block) {
  double sum = 0;
  BlockSumsReference(block.data(), DType::kFloat32, kBlockElements, {&sum, 1});
  return sum;
}

}  // namespace

LambScalars MakeLambScalars(const LambHyperparameters& hyper, double lr, uint64_t t,
                            double grad_scale) {
  PENSTOCK_CHECK(t >= 1, "LAMB's t counts from 1");
  const auto steps = static_cast<double>(t);
  const double bias1 = hyper.bias_correction ? 1 - std::pow(hyper.beta1, steps) : 1.0;
  const double bias2 = hyper.bias_correction ? 1 - std::pow(hyper.beta2, steps) : 1.0;
  return WithTrustRatio(
      LambScalars{
          .beta1 = static_cast<float>(hyper.beta1),
          .one_minus_beta1 = static_cast<float>(1 - hyper.beta1),
          .beta2 = static_cast<float>(hyper.beta2),
          .one_minus_beta2 = static_cast<float>(1 - hyper.beta2),
          .eps = static_cast<float>(hyper.eps),
          .negative_step_size = 0,
          .decay = static_cast<float>(hyper.weight_decay),
          .grad_scale = static_cast<float>(grad_scale),
          .step_size = lr * std::sqrt(bias2) / bias1,
          .max_coeff = hyper.max_coeff,
          .min_coeff = hyper.min_coeff,
      },
      1);
}

double TrustRatio(const LambScalars& scalars, const TrustSums& of_tensor) {
  if (of_tensor.weights == 0 || of_tensor.update == 0) return 1;
  const double ratio = std::sqrt(of_tensor.weights) / std::sqrt(of_tensor.update);
  // The order keeps NaN.
  return std::max(std::min(ratio, scalars.max_coeff), scalars.min_coeff);
}

LambScalars WithTrustRatio(LambScalars scalars, double ratio) {
  scalars.negative_step_size = static_cast<float>(-scalars.step_size * ratio);
  return scalars;
}

void LambDirectionsReference(const LambScalars& scalars, const OptimizerTile& tile,
                             std::span<float> weights, std::span<float> updates) {
  for (uint64_t i = 0; i < weights.size(); ++i) {
    const float w = LoadWeight(tile, i);
    float m = LoadMoment(tile.exp_avg, i);
    float v = LoadMoment(tile.exp_avg_sq, i);
    const float u = Direct(scalars, LoadGradient(tile, i) * scalars.grad_scale, m, v);
    weights[i] = w;
    updates[i] = scalars.decay == 0 ? u : std::fma(w, scalars.decay, u);
  }
}

void LambSumsReference(const LambScalars& scalars, const OptimizerTile& tile,
                       std::span<TrustSums> of_blocks) {
  const uint64_t n = ElementCountOf<LambScalars>(tile);
  for (uint64_t block = 0; block < of_blocks.size(); ++block) {
    const uint64_t first = block * kBlockElements;
    const uint64_t count = std::min(kBlockElements, n - first);
    std::array<float, kBlockElements> weights{};
    std::array<float, kBlockElements> updates{};
    LambDirectionsReference(scalars, Part(tile, first, count), std::span(weights).first(count),
                            std::span(updates).first(count));
    of_blocks[block] = {.weights = BlockSumReference(weights),
                        .update = BlockSumReference(updates)};
  }
}

void LambUpdateReference(const LambScalars& scalars, const OptimizerTile& tile,
                         std::span<WeightFigures> of_blocks) {
  UpdateReference(scalars, tile, of_blocks, Direct);
}

}  // namespace penstock::kernels
