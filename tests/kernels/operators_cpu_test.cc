// What only the CPU's operators have: the name of their arithmetic, and what a kernel's failure is.
#include "kernels/model/cpu_operators.h"

#include <dnnl.hpp>

#include "tests/kernels/forced_target.h"
#include "tests/kernels/operators_testing.h"

namespace penstock::kernels {
namespace {

constexpr LayerShapes kShapes{
    .batch = 2, .sequence = 33, .width = 48, .heads = 3, .hidden = 192, .vocabulary = 257};

TEST(ArithmeticTest, NamesWhatTheBitsDependOnAndNothingElse) {
  const auto arithmetic = [](const Mode& mode, const LayerShapes& shapes, int threads) {
    return OperatorsHarness(mode, shapes, threads).operators().arithmetic();
  };
  const Mode single{.name = "fp32"};
  const Mode converted{.name = "bf16", .dtype = DType::kBFloat16, .converts = true};
  const std::string two = arithmetic(converted, kShapes, 2);
  LayerShapes other = kShapes;
  other.batch = 1;
  EXPECT_EQ(arithmetic(converted, other, 2), two);
  EXPECT_NE(arithmetic(converted, kShapes, 1), two);
  EXPECT_NE(arithmetic(single, kShapes, 2), two);
  EXPECT_EQ(two.find("cpu "), 0U) << two;
  for (const char* part : {"bf16 converted in equal panels", "oneDNN", "2 threads"}) {
    EXPECT_NE(two.find(part), std::string::npos) << part << " in " << two;
  }
  for (const char* const target : VectorTargets()) {
    const ForcedTarget forced(target);
    EXPECT_NE(arithmetic(single, kShapes, 1).find(target), std::string::npos) << target;
  }
}

TEST(RunKernelTest, OneDnnsLackOfMemoryIsTheStreamsLackOfMemory) {
  const auto status_after = [](dnnl_status_t status) {
    const auto device = device::CreateCpuDevice({.memory = 0_B}).value();
    const auto stream = device->CreateStream("compute").value();
    dynamic_cast<device::CpuStream&>(*stream).Launch(
        [=] { RunKernel(1, [=] { throw dnnl::error(status, "could not execute"); }); });
    return stream->Synchronize();
  };
  EXPECT_EQ(status_after(dnnl_out_of_memory).error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(status_after(dnnl_runtime_error).error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace penstock::kernels
