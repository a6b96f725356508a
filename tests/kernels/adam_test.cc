// Every instruction set against the scalar reference, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/adam.h"
#include "tests/kernels/adam_tile_data.h"

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
                              1e-8f,
                              1.0f,
                              -1.0f,
                              1.0f + Limits::epsilon(),
                              3e4f,
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
class AdamTargetTest : public testing::TestWithParam<const char*> {
 protected:
  void ExpectEqualsReference(const AdamScalars& scalars, const TileData& start) {
    TileData actual = start;
    TileData expected = start;
    AdamUpdateOn(GetParam(), scalars, actual.tile());
    AdamUpdateReference(scalars, expected.tile());
    EXPECT_EQ(actual.DifferencesFrom(expected), 0);
  }
};

INSTANTIATE_TEST_SUITE_P(Targets, AdamTargetTest, testing::ValuesIn(AdamTargets()),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(AdamTargetTest, EqualsTheReferenceInEveryMode) {
  for (const TileData::Format format : kFormats) {
    TileData data(format, 1000);
    FillNormal(data);
    for (const AdamHyperparameters& hyper : AllModes()) {
      for (const uint64_t t : {uint64_t{1}, uint64_t{100000}}) {
        for (const double scale : {1.0, 1.0 / 65536, 0.37}) {
          ExpectEqualsReference(MakeAdamScalars(hyper, 1e-3, t, scale), data);
          ExpectEqualsReference(MakeAdamScalars(hyper, 0.7, t, scale), data);
        }
      }
    }
  }
}

TEST_P(AdamTargetTest, EqualsTheReferenceAtEverySizeAndStart) {
  const AdamScalars scalars = MakeAdamScalars({.weight_decay = 0.01}, 1e-3, 3, 0.5);
  for (const TileData::Format format : kFormats) {
    for (const uint64_t count : {0, 1, 7, 8, 15, 16, 17, 31, 33, 4095, 4096, 4097}) {
      for (const uint64_t shift : {0, 1, 3, 5, 8, 15}) {
        SCOPED_TRACE(testing::Message() << count << " elements from " << shift);
        TileData data(format, count, shift);
        FillNormal(data);
        ExpectEqualsReference(scalars, data);
      }
    }
  }
}

TEST_P(AdamTargetTest, EqualsTheReferenceOnDenormalHugeTinyAndZeroValues) {
  for (const TileData::Format format : kFormats) {
    TileData data(format, 4097);
    FillExtreme(data, false);
    for (const AdamHyperparameters& hyper : AllModes()) {
      ExpectEqualsReference(MakeAdamScalars(hyper, 1e-3, 1, 1), data);
      ExpectEqualsReference(MakeAdamScalars(hyper, 1e-3, 100000, 1.0 / 1024), data);
    }
  }
}

TEST_P(AdamTargetTest, EqualsTheReferenceOnNonFiniteGradients) {
  for (const TileData::Format format : kFormats) {
    TileData data(format, 4097);
    FillExtreme(data, true);
    for (const AdamHyperparameters& hyper : AllModes()) {
      ExpectEqualsReference(MakeAdamScalars(hyper, 1e-3, 2, 1), data);
    }
  }
}

TEST_P(AdamTargetTest, ZeroGradientsLeaveEveryFiniteWeightPatternAsItIs) {
  const AdamScalars scalars = MakeAdamScalars({}, 1e-3, 1, 1);
  for (const TileData::Format format : kFormats) {
    for (const uint32_t lo : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      TileData data(format, 1 << 16);
      for (uint32_t hi = 0; hi < 1U << 16; ++hi) {
        const bool finite = (hi & 0x7f80) != 0x7f80;
        data.Set(hi, finite ? std::bit_cast<float>(hi << 16 | lo) : 0, 0, 0, 0);
      }
      const TileData before = data;
      AdamUpdateOn(GetParam(), scalars, data.tile());
      EXPECT_EQ(data.DifferencesFrom(before), 0) << std::hex << lo;
    }
  }
}

TEST_P(AdamTargetTest, GradientsNeedNoAlignment) {
  TileData data({true, DType::kFloat32}, 100);
  FillNormal(data);
  TileData expected = data;
  const AdamScalars scalars = MakeAdamScalars({}, 1e-3, 1, 1);
  AdamUpdateReference(scalars, expected.tile());
  for (const size_t shift : {1, 2, 3}) {
    TileData actual = data;
    AdamTile tile = actual.tile();
    std::vector<std::byte> bytes(100 * sizeof(float) + shift);
    std::memcpy(bytes.data() + shift, tile.gradient, 100 * sizeof(float));
    tile.gradient = bytes.data() + shift;
    AdamUpdateOn(GetParam(), scalars, tile);
    EXPECT_EQ(actual.DifferencesFrom(expected), 0) << shift;
  }
}

TEST_P(AdamTargetTest, DenormalsAreNotFlushed) {
  const AdamScalars scalars = MakeAdamScalars({}, 1e-3, 1, 1);
  TileData data({false, DType::kFloat32}, 16);
  for (uint64_t i = 0; i < 16; ++i) data.Set(i, 1e-40f, 0, 0, 4e-39f);
  AdamUpdateOn(GetParam(), scalars, data.tile());
  for (uint64_t i = 0; i < 16; ++i) {
    // The product is exact in double: one rounding, to a denormal.
    EXPECT_EQ(data.m(i), static_cast<float>(double{4e-39f} * scalars.one_minus_beta1));
    EXPECT_NE(data.m(i), 0);
    EXPECT_NE(data.weight(i), 1e-40f);
  }
}

TEST_P(AdamTargetTest, ChunksOfAnySizeGiveTheSameBits) {
  for (const TileData::Format format : kFormats) {
    TileData whole(format, 5000);
    FillNormal(whole);
    TileData chunked = whole;
    const AdamScalars scalars = MakeAdamScalars({.weight_decay = 0.1}, 1e-3, 1, 1);
    AdamUpdateOn(GetParam(), scalars, whole.tile());
    for (uint64_t first = 0; first < 5000;) {
      const uint64_t count = std::min<uint64_t>(1 + first % 700, 5000 - first);
      AdamUpdateOn(GetParam(), scalars, Part(chunked.tile(), first, count));
      first += count;
    }
    EXPECT_EQ(chunked.DifferencesFrom(whole), 0);
  }
}

TEST(AdamTest, DispatchesToTheBestTargetOfThisMachine) {
  ASSERT_FALSE(AdamTargets().empty());
#if defined(__x86_64__) && !defined(__AVX2__)  // else lesser targets are left out
  const auto has = [](const std::string& name) {
    return std::ranges::any_of(AdamTargets(), [&](const char* target) { return name == target; });
  };
  EXPECT_EQ(has("AVX2"), __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(has("AVX3"), __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                             __builtin_cpu_supports("avx512dq"));
  EXPECT_FALSE(has("SSE4")) << "it has no fused multiply-add";
#endif
  TileData best({true, DType::kBFloat16}, 4097);
  FillExtreme(best, false);
  TileData forced = best;
  const AdamScalars scalars = MakeAdamScalars({}, 1e-3, 1, 1);
  AdamUpdate(scalars, best.tile());
  AdamUpdateOn(AdamTargets().front(), scalars, forced.tile());
  EXPECT_EQ(best.DifferencesFrom(forced), 0);
}

TEST(AdamDeathTest, RefusesTilesThatContradictThemselves) {
  const AdamScalars scalars = MakeAdamScalars({}, 1e-3, 1, 1);
  TileData data({true, DType::kBFloat16}, 32);
  AdamTile shorter = data.tile();
  shorter.exp_avg_sq = shorter.exp_avg_sq.first(31);
  EXPECT_DEATH(AdamUpdate(scalars, shorter), "32 first and 31 second moments");
  AdamTile half = data.tile();
  half.weight_lo = {};
  EXPECT_DEATH(AdamUpdate(scalars, half), "split");
  AdamTile fp16 = data.tile();
  fp16.gradient_dtype = DType::kFloat16;
  EXPECT_DEATH(AdamUpdate(scalars, fp16), "fp16");
  EXPECT_DEATH(MakeAdamScalars({}, 1e-3, 0, 1), "counts from 1");
}

}  // namespace
}  // namespace penstock::kernels
