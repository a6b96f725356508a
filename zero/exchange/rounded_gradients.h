// The sums of gradients where one rank trains alone and communication_data_type is not fp32: each
// micro-batch's gradient is computed by itself and rounded, as several ranks round it before they
// send it, and then added to the sums. So the number of ranks changes no bit.
//
// Threads: the one that feeds the compute stream.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "config/config.h"
#include "device/device.h"
#include "kernels/dtype.h"
#include "offload/layout.h"
#include "zero/exchange/device_gradients.h"
#include "zero/exchange/gradient_sums.h"
#include "zero/model.h"

namespace penstock::zero {

/// Whether the gradient of each micro-batch of a rank that trains alone is rounded: as several
/// ranks send it, if they send each by itself.
bool RoundsMicroBatches(const config::Config& config);

class RoundedGradients final : public GradientSums {
 public:
  /// What it allocates on the device beyond the sums, which are those of DeviceGradients: the same
  /// once more, for the gradient of a micro-batch, and a piece of it, rounded.
  static Bytes RoundedNeed(const offload::ShardLayout& layout, kernels::DType dtype);
  /// `dtype`: what gradients are rounded to. Errors: kBudget.
  static Result<std::unique_ptr<RoundedGradients>> Create(const ModelSpec& model,
                                                          const offload::ShardLayout& layout,
                                                          kernels::DType dtype,
                                                          device::Device& device,
                                                          kernels::StateOperators& operators);

  Result<float*> Buffer(ModuleId module, device::Stream& compute) override;
  Status Add(ModuleId module, device::Stream& compute) override;
  Result<FinishedSums> Finish(ModuleId module, device::Stream& compute) override;
  void EndStep() override;

 private:
  RoundedGradients(kernels::DType dtype, kernels::StateOperators& operators)
      : dtype_(dtype), operators_(operators) {}

  const kernels::DType dtype_;
  kernels::StateOperators& operators_;
  std::unique_ptr<DeviceGradients> parts_;  ///< gradients of one micro-batch
  std::unique_ptr<DeviceGradients> sums_;   ///< open from a part's first request on
  std::vector<uint64_t> elements_;          ///< of each module
  device::DeviceBuffer rounded_;            ///< a piece of a part
};

}  // namespace penstock::zero
