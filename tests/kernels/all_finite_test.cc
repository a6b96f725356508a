#include "kernels/state/all_finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/dtype.h"

namespace penstock::kernels {
namespace {

using Limits = std::numeric_limits<float>;

constexpr float kNotFinite[] = {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(),
                                -Limits::quiet_NaN()};
constexpr uint64_t kSizes[] = {1, 7, 16, 33, 4096};

template <typename T, typename Convert>
void ExpectOneIsSeenAnywhere(DType dtype, float largest, Convert convert) {
  for (const uint64_t n : kSizes) {
    std::vector<T> values(n, convert(largest));
    values[n / 2] = convert(-largest);
    EXPECT_TRUE(AllFinite(values.data(), dtype, n));
    for (const float value : kNotFinite) {
      for (uint64_t at = 0; at < n; at += n / 7 + 1) {
        const T before = values[at];
        values[at] = convert(value);
        EXPECT_FALSE(AllFinite(values.data(), dtype, n)) << value << " at " << at << " of " << n;
        values[at] = before;
      }
    }
  }
}

TEST(AllFinite, OneValueThatIsNotIsSeenAnywhereInFp32) {
  ExpectOneIsSeenAnywhere<float>(DType::kFloat32, Limits::max(), [](float x) { return x; });
}

TEST(AllFinite, OneValueThatIsNotIsSeenAnywhereInBf16) {
  ExpectOneIsSeenAnywhere<BFloat16>(DType::kBFloat16, 3e38F,
                                    [](float x) { return RoundToBFloat16(x); });
}

TEST(AllFinite, OneValueThatIsNotIsSeenAnywhereInFp16) {
  ExpectOneIsSeenAnywhere<Float16>(DType::kFloat16, 65504.0F,
                                   [](float x) { return Float16{RoundToFloat16(x)}; });
}

template <typename T>
void ExpectEveryPatternIsJudged(DType dtype) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    std::vector<T> values(33);
    values[20].bits = static_cast<uint16_t>(bits);
    ASSERT_EQ(AllFinite(values.data(), dtype, values.size()), std::isfinite(ToFloat(values[20])))
        << bits;
  }
}

TEST(AllFinite, EveryPatternOf16BitsIsJudgedAsItsValueIs) {
  ExpectEveryPatternIsJudged<BFloat16>(DType::kBFloat16);
  ExpectEveryPatternIsJudged<Float16>(DType::kFloat16);
}

TEST(AllFinite, NoValuesAreFinite) { EXPECT_TRUE(AllFinite(nullptr, DType::kFloat32, 0)); }

}  // namespace
}  // namespace penstock::kernels
