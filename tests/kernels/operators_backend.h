// How the tests of the operators make them. An executable has one implementation of these
// functions: operators_on_cpu.cc or operators_on_cuda.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "kernels/dtype.h"
#include "kernels/model/model_operators.h"

namespace penstock::kernels {

/// How operators are asked to compute.
struct Mode {
  std::string name;
  DType dtype = DType::kFloat32;
  bool rounds_terms = false;      ///< attention rounds probabilities before it multiplies them
  uint64_t queries_at_once = 64;  ///< a NaN in a value may reach as many earlier rows
  double fused_tanh_error = 0;    ///< of GELU in products
  bool converts = false;          ///< CPU: 16 bits are multiplied in fp32
  std::string target = {};        ///< CPU: the instruction set of the vector code
};
inline void PrintTo(const Mode& mode, std::ostream* out) { *out << mode.name; }

/// All that are tested; the first is fp32.
std::vector<Mode> TestedModes();
/// Why this machine cannot compute in that mode; nothing where it can.
std::optional<std::string> Missing(const Mode& mode);
/// Vector code computes as the mode says for as long as this lives.
std::shared_ptr<void> Enter(const Mode& mode);

Result<Bytes> TestedScratch(const Mode& mode, const OperatorOptions& options);
Result<std::unique_ptr<ModelOperators>> CreateTestedOperators(device::Device& device,
                                                              const Mode& mode,
                                                              const OperatorOptions& options);
/// Distances from an aligned address at which operands may lie as well.
std::vector<uint64_t> OtherOffsets();

}  // namespace penstock::kernels
