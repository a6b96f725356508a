#include "kernels/model/cpu_operators.h"
#include "tests/kernels/forced_target.h"
#include "tests/kernels/operators_backend.h"

namespace penstock::kernels {
namespace {

Bf16Arithmetic ArithmeticOf(const Mode& mode) {
  return mode.converts ? Bf16Arithmetic::kConvert : Bf16Arithmetic::kNative;
}

}  // namespace

std::vector<Mode> TestedModes() {
  const Mode kinds[] = {
      {.name = "fp32"},
      {.name = "bf16", .dtype = DType::kBFloat16, .rounds_terms = true},
      {.name = "bf16_converted", .dtype = DType::kBFloat16, .converts = true},
      {.name = "fp16", .dtype = DType::kFloat16, .converts = true},
  };
  std::vector<Mode> modes;
  for (const Mode& kind : kinds) {
    for (const char* const target : VectorTargets()) {
      modes.push_back(kind);
      modes.back().name += std::string("_") + target;
      modes.back().target = target;
    }
  }
  return modes;
}

std::optional<std::string> Missing(const Mode& mode) {
  const bool instructions = mode.dtype == DType::kBFloat16 && !mode.converts;
  if (instructions && BestBf16Arithmetic() == Bf16Arithmetic::kConvert) {
    return "this machine has no bf16 instructions";
  }
  return std::nullopt;
}

std::shared_ptr<void> Enter(const Mode& mode) {
  return std::make_shared<ForcedTarget>(mode.target);
}

Result<Bytes> TestedScratch(const Mode& mode, const OperatorOptions& options) {
  return CpuOperatorScratch(options, ArithmeticOf(mode));
}

Result<std::unique_ptr<ModelOperators>> CreateTestedOperators(device::Device& device,
                                                              const Mode& mode,
                                                              const OperatorOptions& options) {
  return CreateCpuOperators(device, options, ArithmeticOf(mode));
}

std::vector<uint64_t> OtherOffsets() { return {4, 100}; }

}  // namespace penstock::kernels
