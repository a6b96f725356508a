// fp32 sums of weight gradients on the device, in which the gradients of micro-batches are added
// up.
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
#include "zero/model.h"

namespace penstock::zero {

class DeviceGradients {
 public:
  /// Errors: kBudget.
  static Result<DeviceGradients> Create(const ModelSpec& model, const offload::ShardLayout& layout,
                                        device::Device& device);

  /// Returns the module's sums, [ModelLayout::TrainedElements]. Errors: kInvalidArgument if another
  /// module has the buffer.
  Result<float*> Sums(ModuleId module, device::Stream& compute);
  /// Says that the sums are complete. The buffer may serve the next module or step once they are
  /// rounded (on the compute stream). Errors: kInvalidArgument if Sums was not called.
  Result<const float*> Finish(ModuleId module);
  /// Drops sums that were not finished.
  void EndStep();

 private:
  struct Module {
    std::string name;
    Bytes size;
    size_t buffer = 0;
  };

  std::vector<device::DeviceBuffer> buffers_;
  std::vector<std::optional<ModuleId>> open_;  ///< of each buffer: whose sums it has
  std::vector<Module> modules_;
};

}  // namespace penstock::zero
