// Runs the vector code of this process on one instruction set, while it lives.
#pragma once

#include <hwy/targets.h>

#include <cstdint>
#include <string>

#include "base/check.h"
#include "kernels/vector_targets.h"

namespace penstock::kernels {

class ForcedTarget {
 public:
  /// One of VectorTargets(), which all files with vector code are compiled for.
  explicit ForcedTarget(const std::string& name) {
    for (int bit = 0; bit < 63; ++bit) {
      const int64_t target = int64_t{1} << bit;
      if (name != hwy::TargetName(target)) continue;
      hwy::SetSupportedTargetsForTest(target);
      return;
    }
    PENSTOCK_CHECK(false, "no instruction set {}", name);
  }
  ~ForcedTarget() { hwy::SetSupportedTargetsForTest(0); }
  ForcedTarget(const ForcedTarget&) = delete;
  ForcedTarget& operator=(const ForcedTarget&) = delete;
};

}  // namespace penstock::kernels
