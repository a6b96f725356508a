#include "front/group_scalars.h"

#include <cmath>
#include <optional>
#include <variant>

namespace penstock::front {

Result<kernels::OptimizerHyperparameters> WithScalars(kernels::OptimizerHyperparameters hyper,
                                                      const GroupScalars& scalars) {
  const auto wrong = [](const char* name, double value, const char* range) {
    return MakeError(ErrorCode::kInvalidArgument, "a parameter group has {} {}; give {}", name,
                     value, range);
  };
  if (!std::isfinite(scalars.lr)) return wrong("lr", scalars.lr, "a finite number");
  if (!std::isfinite(scalars.weight_decay)) {
    return wrong("weight_decay", scalars.weight_decay, "a finite number");
  }
  std::optional<Error> error;
  std::visit(
      [&](auto& rule) {
        rule.weight_decay = scalars.weight_decay;
        if constexpr (requires { rule.beta1, rule.beta2; }) {
          rule.beta1 = scalars.beta1;
          rule.beta2 = scalars.beta2;
          for (const double beta : {scalars.beta1, scalars.beta2}) {
            if (!(beta >= 0 && beta < 1)) error = wrong("a beta of", beta, "one in [0, 1)");
          }
        }
        if constexpr (requires { rule.eps; }) {
          rule.eps = scalars.eps;
          if (!(scalars.eps >= 0 && std::isfinite(scalars.eps))) {
            error = wrong("eps", scalars.eps, "a finite number that is not negative");
          }
        }
      },
      hyper);
  if (error) return *error;
  return hyper;
}

}  // namespace penstock::front
