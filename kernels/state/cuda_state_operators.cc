// The state operators on the CUDA device: our own kernels.
#include "base/check.h"
#include "kernels/state/cuda_gradients.h"
#include "kernels/state/cuda_optimizer.h"
#include "kernels/state/state_operator_factories.h"

namespace penstock::kernels {
namespace {

device::CudaStream& OnCuda(device::Stream& stream) {
  auto* const cuda = dynamic_cast<device::CudaStream*>(&stream);
  PENSTOCK_CHECK(cuda != nullptr, "state operators of the CUDA device need one of its streams");
  return *cuda;
}

class CudaStateOperators final : public StateOperators {
 public:
  Result<std::unique_ptr<StateOperators>> WithThreads(int /*threads*/) const override {
    return CreateCudaStateOperators();
  }
  void RoundGradients(device::Stream& stream, const float* in, DType dtype, uint64_t n,
                      std::byte* out) override {
    CudaRoundGradients(OnCuda(stream), in, dtype, n, out);
  }
  void AddInOrder(device::Stream& stream, float* sums, uint64_t n,
                  const ElementRows& parts) override {
    CudaAddInOrder(OnCuda(stream), sums, n, parts);
  }
  void AddGradient(device::Stream& stream, const std::byte* values, DType dtype, uint64_t n,
                   bool first, float* sums) override {
    CudaAddGradient(OnCuda(stream), values, dtype, n, first, sums);
  }
  void BlockSums(device::Stream& stream, const std::byte* gradient, DType dtype, uint64_t n,
                 double* sums, uint32_t* finite) override {
    CudaBlockSums(OnCuda(stream), gradient, dtype, n, sums, finite);
  }
  void GradientFigures(device::Stream& stream, const std::byte* gradient, DType dtype, uint64_t n,
                       const GradientEnd* ends, uint64_t end_count,
                       const DeviceBlockFigures& figures) override {
    CudaGradientFigures(OnCuda(stream), gradient, dtype, n, {ends, end_count}, figures);
  }
  void AddZeroCounts(device::Stream& stream, const float* values, uint64_t n,
                     ZeroCounts* counts) override {
    CudaAddZeroCounts(OnCuda(stream), values, n, counts);
  }
  void Update(device::Stream& stream, const PartsUpdate& update, const StateParts& parts,
              WeightFigures* of_blocks) override {
    CudaUpdate(OnCuda(stream), update, parts, of_blocks);
  }
  void SumForTrust(device::Stream& stream, const OptimizerScalars& scalars, const StateParts& parts,
                   TrustSums* of_blocks) override {
    CudaSumForTrust(OnCuda(stream), scalars, parts, of_blocks);
  }
};

}  // namespace

Result<std::unique_ptr<StateOperators>> CreateCudaStateOperators() {
  return std::unique_ptr<StateOperators>(std::make_unique<CudaStateOperators>());
}

}  // namespace penstock::kernels
