// The scalars and the scalar reference. The vector code is in lion_simd.cc.
#include "kernels/state/lion.h"

#include <cmath>

#include "kernels/state/optimizer_reference.h"

namespace penstock::kernels {

LionScalars MakeLionScalars(const LionHyperparameters& hyper, double lr, double grad_scale) {
  return LionScalars{
      .beta1 = static_cast<float>(hyper.beta1),
      .one_minus_beta1 = static_cast<float>(1 - hyper.beta1),
      .beta2 = static_cast<float>(hyper.beta2),
      .one_minus_beta2 = static_cast<float>(1 - hyper.beta2),
      .negative_step_size = static_cast<float>(-lr),
      .decay = static_cast<float>(-lr * hyper.weight_decay),
      .grad_scale = static_cast<float>(grad_scale),
  };
}

void LionUpdateReference(const LionScalars& scalars, const OptimizerTile& tile,
                         std::span<WeightFigures> of_blocks) {
  UpdateReference(scalars, tile, of_blocks, [](const LionScalars& s, float g, float& m, float&) {
    const float c = std::fma(g, s.one_minus_beta1, m * s.beta1);
    m = std::fma(g, s.one_minus_beta2, m * s.beta2);
    return c == 0 || std::isnan(c) ? c : std::copysign(1.0f, c);
  });
}

}  // namespace penstock::kernels
