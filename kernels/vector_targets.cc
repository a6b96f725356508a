#include "kernels/vector_targets.h"

#include <cstdint>
#include <vector>

#include "hwy/targets.h"

namespace penstock::kernels {

std::span<const char* const> VectorTargets() {
  static const std::vector<const char*> names = [] {
    std::vector<const char*> found;
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
      found.push_back(hwy::TargetName(target));
    }
    return found;
  }();
  return names;
}

}  // namespace penstock::kernels
