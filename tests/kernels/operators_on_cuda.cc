#include <limits>

#include "kernels/model/operator_factories.h"
#include "tests/kernels/operators_backend.h"
#include "tests/kernels/tested_device.h"

namespace penstock::kernels {
namespace {

/// Of PTX's tanh.approx, which a product may take: 2^-11.
constexpr double kTanhError = 1.0 / 2048;

}  // namespace

std::vector<Mode> TestedModes() {
  return {{.name = "fp32", .queries_at_once = std::numeric_limits<uint64_t>::max()},
          {.name = "bf16",
           .dtype = DType::kBFloat16,
           .rounds_terms = true,
           .fused_tanh_error = kTanhError},
          {.name = "fp16",
           .dtype = DType::kFloat16,
           .rounds_terms = true,
           .fused_tanh_error = kTanhError}};
}

std::optional<std::string> Missing(const Mode&) { return MissingDevice(); }

std::shared_ptr<void> Enter(const Mode&) { return nullptr; }

Result<Bytes> TestedScratch(const Mode&, const OperatorOptions& options) {
  return CudaOperatorScratch(options);
}

Result<std::unique_ptr<ModelOperators>> CreateTestedOperators(device::Device& device, const Mode&,
                                                              const OperatorOptions& options) {
  return CreateCudaOperators(device, options);
}

std::vector<uint64_t> OtherOffsets() { return {16, 4096}; }

}  // namespace penstock::kernels
