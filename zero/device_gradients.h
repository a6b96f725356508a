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
  static Result<DeviceGradients> Create(const ModelSpec& model, const offload::ShardLayout& layout,
                                        device::Device& device);

  /// The module's sums, [elements of its flat index].
  float* Sums(ModuleId module, device::Stream& compute);
  /// The sums are complete; the buffer may serve the next module or step once they are rounded (on
  /// the compute stream). Preconditions: Sums was called in this step; modules come in the order of
  /// ModelSpec::gradients.
  const float* Finish(ModuleId module);
  /// The next step begins. Precondition: every module is finished.
  void NextStep();

 private:
  struct Module {
    Bytes size;
    size_t buffer = 0;
    bool open = false;
  };

  size_t missing() const { return order_.size() - finished_; }

  std::vector<device::DeviceBuffer> buffers_;
  std::vector<bool> taken_;  ///< of each buffer: some module's sums are open
  std::vector<Module> modules_;
  std::vector<ModuleId> order_;
  size_t finished_ = 0;  ///< modules of this step
};

}  // namespace penstock::zero
