// The scalars and the scalar reference. The vector code is in adagrad_simd.cc.
#include "kernels/state/adagrad.h"

#include <cmath>

#include "base/check.h"
#include "kernels/state/optimizer_reference.h"

namespace penstock::kernels {

AdagradScalars MakeAdagradScalars(const AdagradHyperparameters& hyper, double lr, uint64_t t,
                                  double grad_scale) {
  PENSTOCK_CHECK(t >= 1, "Adagrad's t counts from 1");
  return AdagradScalars{
      .eps = static_cast<float>(hyper.eps),
      .negative_step_size =
          static_cast<float>(-lr / (1 + static_cast<double>(t - 1) * hyper.lr_decay)),
      .decay = static_cast<float>(hyper.weight_decay),
      .grad_scale = static_cast<float>(grad_scale),
  };
}

void AdagradUpdateReference(const AdagradScalars& scalars, const OptimizerTile& tile,
                            std::span<WeightFigures> of_blocks) {
  UpdateReference(scalars, tile, of_blocks,
                  [](const AdagradScalars& s, float g, float&, float& sum) {
                    sum = std::fma(g, g, sum);
                    return g / (std::sqrt(sum) + s.eps);
                  });
}

}  // namespace penstock::kernels
