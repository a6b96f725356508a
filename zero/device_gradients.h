// fp32 sums of weight gradients on the device: where the micro-batches' gradients are added up.
//
// Each module that is not repeated has sums of its own, the repeated ones share one buffer, one
// module at a time. A module's sums are zeroed on the compute stream when they are first asked for
// in a step.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "offload/layout.h"
#include "zero/model.h"

namespace penstock::zero {

class DeviceGradients {
 public:
  /// Errors: kBudget.
  static Result<DeviceGradients> Create(const ModelSpec& model, const offload::Layout& layout,
                                        device::Device& device);

  /// The module's sums, [elements of its flat index].
  float* Sums(ModuleId module, device::Stream& compute);
  /// The sums were rounded (on the compute stream); the buffer may serve the next module or step.
  /// Precondition: Sums was called in this step.
  const float* Finish(ModuleId module);

 private:
  struct Module {
    Bytes size;
    size_t buffer = 0;
    bool open = false;
  };

  std::vector<device::DeviceBuffer> buffers_;
  std::vector<bool> taken_;  ///< of each buffer: some module's sums are open
  std::vector<Module> modules_;
};

}  // namespace penstock::zero
