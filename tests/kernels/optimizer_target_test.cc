// Every instruction set against the scalar reference, bit for bit, for every rule.
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "base/random.h"
#include "tests/kernels/forced_target.h"
#include "tests/kernels/optimizer_steps.h"
#include "tests/kernels/optimizer_tile_data.h"
#include "tests/search_share.h"

namespace penstock::kernels {
namespace {

using Limits = std::numeric_limits<float>;

constexpr float kSpecial[] = {0.0f,
                              -0.0f,
                              Limits::denorm_min(),
                              -Limits::denorm_min(),
                              1e-40f,
                              -3e-39f,
                              Limits::min(),
                              -Limits::min(),
                              1e-30f,
                              -1e-23f,
                              1e-19f,
                              -7e-8f,
                              1e-8f,
                              1.0f,
                              -1.0f,
                              1.0f + Limits::epsilon(),
                              3e4f,
                              65519.0f,
                              -1e15f,
                              1e19f,
                              1.9e19f,
                              -1e30f,
                              Limits::max(),
                              Limits::lowest()};

/// Normal values with extreme ones among them, in all combinations as the index goes on.
void FillExtreme(TileData& data, bool non_finite) {
  FillNormal(data);
  const auto pick = [](uint64_t i, uint64_t stream) {
    return kSpecial[Philox(9, stream, i)[0] % std::size(kSpecial)];
  };
  constexpr float kNonFinite[] = {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()};
  for (uint64_t i = 0; i < data.count(); i += 1 + i % 3) {
    const float gradient = non_finite && i % 5 == 0 ? kNonFinite[i % 3] : pick(i, 3);
    data.Set(i, pick(i, 0), pick(i, 1), std::abs(pick(i, 2)), gradient);
  }
}

/// Every test runs once for each instruction set of this machine.
class OptimizerTargetTest : public testing::TestWithParam<const char*> {
 protected:
  static void ExpectEqualsReference(const OptimizerStep& step, const TileData& start) {
    TileData actual = start;
    TileData expected = start;
    step.update(actual.tile());
    step.reference(expected.tile());
    EXPECT_EQ(actual.DifferencesFrom(expected), 0)
        << step.name << ", " << testing::PrintToString(start.format());
  }

  /// `fill` makes the values of each tile.
  template <typename Fill>
  void ExpectAllEqualReference(const std::vector<OptimizerStep>& steps, uint64_t count,
                               uint64_t shift, Fill fill) {
    for (const OptimizerStep& step : steps) {
      for (const TileFormat& format : AllFormats(step.exp_avg, step.exp_avg_sq)) {
        if (tried_++ % kEmulatedStride != 0) continue;
        TileData data(format, count, shift);
        fill(data);
        ExpectEqualsReference(step, data);
      }
    }
  }

 private:
  const ForcedTarget forced_{GetParam()};
  uint64_t tried_ = 0;  ///< combinations of a step and a format, in this test
};

INSTANTIATE_TEST_SUITE_P(Targets, OptimizerTargetTest, testing::ValuesIn(VectorTargets()),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(OptimizerTargetTest, EqualsTheReferenceInEveryModeAndFormat) {
  for (const double scale : {1.0, 1.0 / 65536, 0.37}) {
    ExpectAllEqualReference(AllSteps(1e-3, scale), 200, 0, FillNormal);
    ExpectAllEqualReference(AllSteps(0.7, scale), 200, 0, FillNormal);
  }
}

TEST_P(OptimizerTargetTest, EqualsTheReferenceAtEverySizeAndStart) {
  for (const uint64_t count :
       {0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1025, 4095, 4096, 4097}) {
    for (const uint64_t shift : {0, 1, 3, 5, 8, 15, 16}) {
      if (count > 1000 && shift > 1) continue;
      SCOPED_TRACE(testing::Message() << count << " elements from " << shift);
      ExpectAllEqualReference(OneStepOfEachRule(), count, shift, FillNormal);
    }
  }
}

TEST_P(OptimizerTargetTest, EqualsTheReferenceOnDenormalHugeTinyAndZeroValues) {
  ExpectAllEqualReference(AllSteps(1e-3, 1.0 / 1024), 1100, 0,
                          [](TileData& data) { FillExtreme(data, false); });
  ExpectAllEqualReference(OneStepOfEachRule(), 4097, 0,
                          [](TileData& data) { FillExtreme(data, false); });
}

TEST_P(OptimizerTargetTest, EqualsTheReferenceOnNonFiniteGradients) {
  ExpectAllEqualReference(AllSteps(1e-3, 1), 1100, 0,
                          [](TileData& data) { FillExtreme(data, true); });
}

TEST_P(OptimizerTargetTest, ZeroGradientsLeaveEveryFiniteWeightPatternAsItIs) {
  const std::vector<OptimizerStep> steps = {AdamStep({}, 1e-3, 1, 1), LionStep({}, 1e-3, 1),
                                            AdagradStep({}, 1e-3, 1, 1)};
  for (const OptimizerStep& step : steps) {
    for (const bool split : {true, false}) {
      for (const uint32_t lo : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
        TileData data({.split = split, .exp_avg = step.exp_avg, .exp_avg_sq = step.exp_avg_sq},
                      1 << 16);
        for (uint32_t hi = 0; hi < 1U << 16; ++hi) {
          const bool finite = (hi & 0x7f80) != 0x7f80;
          data.Set(hi, finite ? std::bit_cast<float>(hi << 16 | lo) : 0, 0, 0, 0);
        }
        const TileData before = data;
        step.update(data.tile());
        EXPECT_EQ(data.DifferencesFrom(before), 0) << step.name << ", " << std::hex << lo;
      }
    }
  }
}

TEST_P(OptimizerTargetTest, GradientsNeedNoAlignment) {
  constexpr uint64_t kCount = 300;  // whole lines of every instruction set, and a rest
  for (const OptimizerStep& step : OneStepOfEachRule()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      TileData data({.gradient = dtype, .exp_avg = step.exp_avg, .exp_avg_sq = step.exp_avg_sq},
                    kCount);
      FillNormal(data);
      TileData expected = data;
      step.reference(expected.tile());
      for (const size_t shift : {1, 2, 3}) {
        TileData actual = data;
        OptimizerTile tile = actual.tile();
        std::vector<std::byte> bytes(kCount * SizeOf(dtype).value + shift);
        std::memcpy(bytes.data() + shift, tile.gradient, bytes.size() - shift);
        tile.gradient = bytes.data() + shift;
        step.update(tile);
        EXPECT_EQ(actual.DifferencesFrom(expected), 0) << step.name << " from " << shift;
      }
    }
  }
}

TEST_P(OptimizerTargetTest, EveryFloat16GradientIsReadExactly) {
  TileData data({.split = false, .gradient = DType::kFloat16, .exp_avg = false}, 1 << 16);
  OptimizerTile tile = data.tile();
  std::vector<uint16_t> gradients(1 << 16);
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = static_cast<uint16_t>(i);
  tile.gradient = gradients.data();
  // The gradient's square is the sum, and exact in double.
  AdagradUpdate(MakeAdagradScalars({}, 1e-3, 1, 1), tile);
  for (size_t i = 0; i < gradients.size(); ++i) {
    const double g = Float16ToFloat(gradients[i]);
    if (!std::isfinite(g)) continue;
    ASSERT_EQ(data.v(i), static_cast<float>(g * g)) << std::hex << i;
  }
}

TEST_P(OptimizerTargetTest, DenormalsAreNotFlushed) {
  const AdamScalars scalars = MakeAdamScalars({}, 1e-3, 1, 1);
  constexpr uint64_t kCount = 256;  // whole lines of every instruction set
  TileData data({.split = false, .gradient = DType::kFloat32}, kCount);
  for (uint64_t i = 0; i < kCount; ++i) data.Set(i, 1e-40f, 0, 0, 4e-39f);
  AdamUpdate(scalars, data.tile());
  for (uint64_t i = 0; i < kCount; ++i) {
    // The product is exact in double: one rounding, to a denormal.
    EXPECT_EQ(data.m(i), static_cast<float>(double{4e-39f} * scalars.one_minus_beta1));
    EXPECT_NE(data.m(i), 0);
    EXPECT_NE(data.weight(i), 1e-40f);
  }
}

TEST_P(OptimizerTargetTest, ChunksOfAnySizeGiveTheSameBits) {
  for (const OptimizerStep& step : OneStepOfEachRule()) {
    for (const TileFormat& format : AllFormats(step.exp_avg, step.exp_avg_sq)) {
      TileData whole(format, 5000);
      FillNormal(whole);
      TileData chunked = whole;
      step.update(whole.tile());
      for (uint64_t first = 0; first < 5000;) {
        const uint64_t count = std::min<uint64_t>(1 + first % 700, 5000 - first);
        step.update(Part(chunked.tile(), first, count));
        first += count;
      }
      EXPECT_EQ(chunked.DifferencesFrom(whole), 0)
          << step.name << ", " << testing::PrintToString(format);
    }
  }
}

/// A float of these random bits with its exponent in [low, low + 8).
float RandomFloat(uint32_t random, int low) {
  const auto exponent = static_cast<uint32_t>(127 + low + static_cast<int>(random >> 23 & 7));
  return std::bit_cast<float>((random & 0x807fffff) | exponent << 23);
}

/// FNV-1a over all results.
uint64_t HashOf(const TileData& data) {
  uint64_t hash = 0xcbf29ce484222325;
  for (uint64_t i = 0; i < data.count(); ++i) {
    for (const float value : {data.weight(i), data.m(i), data.v(i)}) {
      hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x100000001b3;
    }
    if (data.format().copy) hash = (hash ^ data.copy(i)) * 0x100000001b3;
  }
  return hash;
}

TEST_P(OptimizerTargetTest, TheBitsAreThoseOfEveryOtherMachine) {
  uint64_t of_lamb = 0;
  uint64_t of_others = 0;
  for (const OptimizerStep& step : OneStepOfEachRule()) {
    uint64_t& hash = std::holds_alternative<LambScalars>(step.scalars) ? of_lamb : of_others;
    for (const TileFormat& format : AllFormats(step.exp_avg, step.exp_avg_sq)) {
      TileData data(format, 1000);
      for (uint64_t i = 0; i < data.count(); ++i) {
        const auto random = Philox(5, 0, i);
        data.Set(i, RandomFloat(random[0], -6), RandomFloat(random[1], -12),
                 std::abs(RandomFloat(random[2], -24)), RandomFloat(random[3], -12));
      }
      step.update(data.tile());
      hash = hash * 31 + HashOf(data);
    }
  }
  EXPECT_EQ(of_lamb, 0xed12a1444d13b715U) << "found on x86-64 and, under qemu, on 64-bit Arm";
  EXPECT_EQ(of_others, 0xaca3807ffb8a7a1bU) << "found on x86-64 and, under qemu, on 64-bit Arm";
}

TEST(OptimizerTest, DispatchesToTheBestTargetOfThisMachine) {
  ASSERT_FALSE(VectorTargets().empty());
#if defined(__x86_64__) && !defined(__AVX2__)  // else lesser targets are left out
  const auto has = [](const std::string& name) {
    return std::ranges::any_of(VectorTargets(), [&](const char* target) { return name == target; });
  };
  EXPECT_EQ(has("AVX2"), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
#ifdef __SANITIZE_ADDRESS__
  EXPECT_FALSE(has("AVX3")) << "kernels/CMakeLists.txt leaves it to the release build";
#else
  EXPECT_EQ(has("AVX3"), __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                             __builtin_cpu_supports("avx512dq"));
#endif
  EXPECT_FALSE(has("SSE4")) << "it has no fused multiply-add";
#endif
}

TEST(OptimizerDeathTest, RefusesTilesThatContradictThemselves) {
  const AdamScalars adam = MakeAdamScalars({}, 1e-3, 1, 1);
  TileData data({}, 32);
  OptimizerTile shorter = data.tile();
  shorter.exp_avg_sq = shorter.exp_avg_sq.Part(0, 31);
  EXPECT_DEATH(AdamUpdate(adam, shorter), "31 exp_avg_sq in fp32 for 32 weights");
  OptimizerTile half = data.tile();
  half.lo = {};
  EXPECT_DEATH(AdamUpdate(adam, half), "32 \\+ 0 split");
  OptimizerTile no_gradient = data.tile();
  no_gradient.gradient = nullptr;
  EXPECT_DEATH(AdamUpdate(adam, no_gradient), "without a gradient");
  EXPECT_DEATH(MakeAdamScalars({}, 1e-3, 0, 1), "counts from 1");
  EXPECT_DEATH(MakeAdagradScalars({}, 1e-3, 0, 1), "counts from 1");
}

TEST(OptimizerDeathTest, RefusesAMasterBesideASplitOrAWholeOne) {
  const AdamScalars adam = MakeAdamScalars({}, 1e-3, 1, 1);
  TileData data({}, 32);
  std::vector<float> master(32);
  OptimizerTile split = data.tile();
  split.master = master;
  EXPECT_DEATH(AdamUpdate(adam, split), "32 \\+ 32 split and 32 whole weights");
  TileData whole({.split = false}, 32);
  OptimizerTile both = whole.tile();
  both.master = master;
  EXPECT_DEATH(AdamUpdate(adam, both), "32 weights in fp32 of 32 masters");
}

#ifdef __aarch64__
/// Else the other tests would show nothing of vectors of that length.
TEST(SveTest, VectorsAreAsLongAsWasAskedFor) {
  const char* const bytes = std::getenv("PENSTOCK_SVE_BYTES");
  if (bytes == nullptr) GTEST_SKIP() << "PENSTOCK_SVE_BYTES asks for no length";
  EXPECT_EQ(prctl(PR_SVE_GET_VL) & PR_SVE_VL_LEN_MASK, std::atoi(bytes));
}
#endif

TEST(OptimizerDeathTest, RefusesMomentsThatTheRuleDoesNotHave) {
  TileData both({}, 32);
  EXPECT_DEATH(LionUpdate(MakeLionScalars({}, 1e-3, 1), both.tile()), "32 second moments in fp32");
  EXPECT_DEATH(AdagradUpdate(MakeAdagradScalars({}, 1e-3, 1, 1), both.tile()),
               "32 first and 32 second moments in fp32");
  TileData first({.exp_avg_sq = false}, 32);
  const AdamScalars adam = MakeAdamScalars({}, 1e-3, 1, 1);
  EXPECT_DEATH(AdamUpdate(adam, first.tile()), "32 first and 0 second moments in fp32");
  TileData mixed({}, 32);
  std::vector<BFloat16> bf16(32);
  OptimizerTile tile = mixed.tile();
  tile.exp_avg = bf16;
  EXPECT_DEATH(AdamUpdate(adam, tile), "0 first and 32 second moments in fp32, 32 and 0 in bf16");
}

}  // namespace
}  // namespace penstock::kernels
