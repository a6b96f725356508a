// Products: every epilogue, layout and way of computing, at sizes that do and do not fill panels.
#include "kernels/model/cpu_matmul.h"

#include <vector>

#include "kernels/cpu_parallel.h"
#include "tests/kernels/operators_testing.h"

namespace penstock::kernels {
namespace {

struct Case {
  const char* name;
  uint64_t m, n, k;
};

/// Sizes: tiny; odd; more than one panel of each kind (accumulation: m · n above 2^20; conversion:
/// m > 512, n > 1024, k > 1024), and of each two kinds at once, as what is converted for one panel
/// may serve the next one.
constexpr Case kCases[] = {
    {"one", 1, 1, 1},
    {"row", 1, 33, 48},
    {"odd", 7, 257, 33},
    {"wide", 300, 700, 9},
    {"wider", 5, 2100, 20},
    {"deep", 35, 40, 1100},
    {"panels", 1030, 1050, 3},
    {"tall and deep", 530, 3, 1040},
    {"wide and deep", 3, 1040, 1040},
};

class ProductTest : public OperatorsTest {
 protected:
  /// What a run needs, in memory of the test.
  struct Run {
    ProductSpec spec;
    Values a, b, bias, residual, c;
  };

  Run MakeRun(const Case& size, Epilogue epilogue, bool a_transposed, bool b_transposed,
              bool bias) {
    const DType dtype = mode().dtype;
    const uint64_t padding = 3;
    Run run;
    run.spec = {
        .m = size.m,
        .n = size.n,
        .k = size.k,
        .a = {dtype, (a_transposed ? size.m : size.k) + padding, a_transposed},
        .b = {dtype, (b_transposed ? size.k : size.n) + padding, b_transposed},
        .c = {epilogue == Epilogue::kAccumulate ? DType::kFloat32 : dtype, size.n + padding},
        .bias = bias,
        .epilogue = epilogue,
        .threads = 2};
    run.a = Random((a_transposed ? size.k : size.m) * run.spec.a.stride, 1);
    run.b = Random((b_transposed ? size.n : size.k) * run.spec.b.stride, 2);
    run.bias = Random(size.n, 3);
    run.residual = Random(size.m * run.spec.c.stride, 4);
    run.c = RandomValues(run.spec.c.dtype, size.m * run.spec.c.stride, 5);
    return run;
  }

  /// c as it should be, padding included.
  static Values Expected(const Run& run) {
    const ProductSpec& spec = run.spec;
    Values c = run.c;
    for (uint64_t i = 0; i < spec.m; ++i) {
      for (uint64_t j = 0; j < spec.n; ++j) {
        double sum = spec.bias ? run.bias[j] : 0;
        for (uint64_t l = 0; l < spec.k; ++l) {
          const Operand& a = spec.a;
          const Operand& b = spec.b;
          sum += run.a[a.transposed ? l * a.stride + i : i * a.stride + l] *
                 run.b[b.transposed ? j * b.stride + l : l * b.stride + j];
        }
        double& element = c[i * spec.c.stride + j];
        if (spec.epilogue == Epilogue::kAddResidual) sum += run.residual[i * spec.c.stride + j];
        const bool adds =
            spec.epilogue == Epilogue::kAddInPlace || spec.epilogue == Epilogue::kAccumulate;
        element = sum + (adds ? element : 0);
      }
    }
    return c;
  }

  Values Compute(const Run& run) {
    OperatorsHarness harness(mode(), {1, 1, 8, 1, 8, 8}, 1);
    const Tensor a = harness.Put(run.a);
    const Tensor b = harness.Put(run.b);
    const Tensor bias = harness.Put(run.bias);
    const Tensor residual = harness.Put(run.spec.c.dtype, run.residual);
    const Tensor c = harness.Put(run.spec.c.dtype, run.c);
    const auto product =
        MakeProduct(run.spec, mode().converts ? Bf16Arithmetic::kConvert : Bf16Arithmetic::kNative);
    const auto scratch = harness.device().Allocate(product->scratch() + 1_B, "scratch").value();
    const ThreadCountScope threads(run.spec.threads);
    product->Run({a.data(), b.data(), c.data(), bias.data(), residual.data()}, scratch.data());
    return harness.Get(c);
  }

  void ExpectRight(const Run& run, const std::string& what) {
    ExpectClose(Compute(run), Expected(run), Tolerance(run.spec.c.dtype), what);
  }
};

TEST_P(ProductTest, StoresTheProductAndTheBiasInEveryLayout) {
  for (const Case& size : kCases) {
    for (const bool a_transposed : {false, true}) {
      for (const bool b_transposed : {false, true}) {
        ExpectRight(MakeRun(size, Epilogue::kStore, a_transposed, b_transposed, true), size.name);
      }
    }
  }
}

TEST_P(ProductTest, AddsToWhatIsThereOrToAResidual) {
  for (const Case& size : kCases) {
    ExpectRight(MakeRun(size, Epilogue::kAddInPlace, false, false, true), size.name);
    ExpectRight(MakeRun(size, Epilogue::kAddResidual, false, false, true), size.name);
  }
}

TEST_P(ProductTest, AccumulatesInFp32) {
  for (const Case& size : kCases) {
    ExpectRight(MakeRun(size, Epilogue::kAccumulate, true, false, false), size.name);
  }
}

TEST_P(ProductTest, AccumulationAddsTheSameValueToAnySum) {
  for (const Case& size : kCases) {
    Run run = MakeRun(size, Epilogue::kAccumulate, true, false, false);
    const Values before = run.c;
    const Values sum = Compute(run);
    std::fill(run.c.begin(), run.c.end(), 0.0);
    const Values alone = Compute(run);
    for (size_t i = 0; i < before.size(); ++i) {
      if (i % run.spec.c.stride >= run.spec.n) continue;
      ASSERT_EQ(sum[i],
                static_cast<double>(static_cast<float>(before[i]) + static_cast<float>(alone[i])))
          << size.name << " [" << i << "]";
    }
  }
}

TEST(ConvertingProductTest, HasScratchForItsPanelsForAllSizes) {
  const Operand matrix{.dtype = DType::kBFloat16, .stride = 1'000'001};
  const auto product = MakeProduct(
      {.m = 1'000'001, .n = 1'000'001, .k = 1'000'001, .a = matrix, .b = matrix, .c = matrix},
      Bf16Arithmetic::kConvert);
  EXPECT_LE(product->scratch(), 8_MiB);
}

INSTANTIATE_TEST_SUITE_P(Modes, ProductTest, AllModes(), ModeName);

}  // namespace
}  // namespace penstock::kernels
