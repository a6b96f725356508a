// The sums of gradients where one rank trains alone: kernels add to them, one micro-batch after the
// other.
//
// Each module that is not repeated has its own sums; the repeated ones share one buffer, one module
// at a time. A module's sums are zeroed on the compute stream when they are first requested in a
// step.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "offload/layout.h"
#include "zero/exchange/gradient_sums.h"
#include "zero/model.h"

namespace penstock::zero {

class DeviceGradients final : public GradientSums {
 public:
  /// Errors: kBudget.
  static Result<std::unique_ptr<DeviceGradients>> Create(const ModelSpec& model,
                                                         const offload::ShardLayout& layout,
                                                         device::Device& device,
                                                         kernels::StateOperators& operators);

  Result<float*> Buffer(ModuleId module, device::Stream& compute) override;
  /// Does nothing more: the kernels have added.
  Status Add(ModuleId module, device::Stream& compute) override;
  /// Returns whether the module's gradient was asked for and not finished.
  bool IsOpen(ModuleId module) const;
  Result<FinishedSums> Finish(ModuleId module, device::Stream& compute) override;
  void EndStep() override;

 private:
  struct Module {
    std::string name;
    Bytes size;
    size_t buffer = 0;
  };

  explicit DeviceGradients(kernels::StateOperators& operators) : operators_(operators) {}
  Status CheckOpen(ModuleId module) const;

  kernels::StateOperators& operators_;
  std::vector<device::DeviceBuffer> buffers_;
  std::vector<std::optional<ModuleId>> open_;  ///< for each buffer: the module whose sums it has
  std::vector<Module> modules_;
};

}  // namespace penstock::zero
