// The scalars and the scalar reference. The vector code is in adam_simd.cc.
#include "kernels/state/adam.h"

#include <cmath>

#include "base/check.h"
#include "kernels/state/optimizer_reference.h"

namespace penstock::kernels {

AdamScalars MakeAdamScalars(const AdamHyperparameters& hyper, double lr, uint64_t t,
                            double grad_scale) {
  PENSTOCK_CHECK(t >= 1, "Adam's t counts from 1");
  const auto steps = static_cast<double>(t);
  const double bias1 = hyper.bias_correction ? 1 - std::pow(hyper.beta1, steps) : 1.0;
  const double bias2 = hyper.bias_correction ? 1 - std::pow(hyper.beta2, steps) : 1.0;
  const double decay = hyper.adam_w_mode ? -lr * hyper.weight_decay : hyper.weight_decay;
  return AdamScalars{
      .beta1 = static_cast<float>(hyper.beta1),
      .one_minus_beta1 = static_cast<float>(1 - hyper.beta1),
      .beta2 = static_cast<float>(hyper.beta2),
      .one_minus_beta2 = static_cast<float>(1 - hyper.beta2),
      .eps = static_cast<float>(hyper.eps),
      .rsqrt_bias2 = static_cast<float>(1 / std::sqrt(bias2)),
      .negative_step_size = static_cast<float>(-lr / bias1),
      .decay = static_cast<float>(decay),
      .grad_scale = static_cast<float>(grad_scale),
      .adam_w_mode = hyper.adam_w_mode,
  };
}

void AdamUpdateReference(const AdamScalars& scalars, const OptimizerTile& tile,
                         std::span<WeightFigures> of_blocks) {
  UpdateReference(scalars, tile, of_blocks, [](const AdamScalars& s, float g, float& m, float& v) {
    m = std::fma(g, s.one_minus_beta1, m * s.beta1);
    v = std::fma(g * g, s.one_minus_beta2, v * s.beta2);
    return m / std::fma(std::sqrt(v), s.rsqrt_bias2, s.eps);
  });
}

}  // namespace penstock::kernels
