// What the tests of the operators share: operators of one mode and shape on a device, and the modes
// that they are tested in.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "tests/gpu_needed.h"
#include "tests/kernels/device_harness.h"
#include "tests/kernels/layer_operators.h"
#include "tests/kernels/operators_backend.h"

namespace penstock::kernels {

/// A device, a stream, and operators of one mode and shape.
class OperatorsHarness : public DeviceHarness {
 public:
  explicit OperatorsHarness(const Mode& mode, const LayerShapes& shapes, int threads = 2,
                            Bytes memory = 256_MiB)
      : OperatorsHarness(mode, shapes, LayerOptions(mode.dtype, shapes, threads), memory) {}
  OperatorsHarness(const Mode& mode, const LayerShapes& shapes, const OperatorOptions& options,
                   Bytes memory = 256_MiB)
      : DeviceHarness(memory),
        mode_(mode),
        shapes_(shapes),
        operators_(CreateTestedOperators(device(), mode, options).value()) {}

  LayerOperators operators() const { return {*operators_, mode_.dtype, shapes_}; }

  using DeviceHarness::Empty;
  using DeviceHarness::Put;
  /// Tensors of operands of the mode's dtype.
  Tensor Put(const Values& values) { return Put(mode_.dtype, values); }
  Tensor Empty(uint64_t n) { return Empty(mode_.dtype, n); }

 private:
  const Mode mode_;
  const LayerShapes shapes_;
  std::unique_ptr<ModelOperators> operators_;
};

/// Tests that run in every mode; those that this machine lacks something for are skipped.
class OperatorsTest : public ::testing::TestWithParam<Mode> {
 protected:
  void SetUp() override { PENSTOCK_SKIP_WHERE_MISSING(Missing(mode())); }
  const Mode& mode() const { return GetParam(); }
  double tolerance() const { return Tolerance(mode().dtype); }
  Values Random(uint64_t n, uint64_t stream, double scale = 1) const {
    return RandomValues(mode().dtype, n, stream, scale);
  }

 private:
  const std::shared_ptr<void> entered_ = Enter(GetParam());
};

/// Tests for which one mode is as good as another.
class OneModeTest : public ::testing::Test {
 protected:
  void SetUp() override { PENSTOCK_SKIP_WHERE_MISSING(Missing(mode_)); }
  const Mode mode_ = TestedModes().front();
};

inline auto AllModes() { return ::testing::ValuesIn(TestedModes()); }
inline std::string ModeName(const ::testing::TestParamInfo<Mode>& info) { return info.param.name; }

}  // namespace penstock::kernels
