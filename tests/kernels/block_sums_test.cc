#include "kernels/state/block_sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/vector_targets.h"
#include "tests/kernels/forced_target.h"

namespace penstock::kernels {
namespace {

constexpr uint64_t kBlocks = 3;
constexpr uint64_t kElements = kBlocks * kBlockElements;
constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr DType kWideDTypes[] = {DType::kFloat32, DType::kBFloat16};

/// Elements of either dtype as bytes, at any distance from an aligned address.
class Elements {
 public:
  Elements(DType dtype, uint64_t count, size_t byte_shift = 0)
      : dtype_(dtype), shift_(byte_shift), bytes_(count * SizeOf(dtype).value + byte_shift) {}

  /// A bf16 element keeps the upper half of `value`.
  void Set(uint64_t i, float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint16_t half =
        dtype_ == DType::kFloat16 ? RoundToFloat16(value) : static_cast<uint16_t>(bits >> 16);
    const size_t size = SizeOf(dtype_).value;
    std::memcpy(bytes_.data() + shift_ + i * size,
                size == sizeof(half) ? static_cast<const void*>(&half) : &bits, size);
  }
  float Get(uint64_t i) const {
    const std::byte* const from = bytes_.data() + shift_ + i * SizeOf(dtype_).value;
    if (dtype_ == DType::kFloat32) {
      float value;
      std::memcpy(&value, from, sizeof(value));
      return value;
    }
    uint16_t half;
    std::memcpy(&half, from, sizeof(half));
    return dtype_ == DType::kBFloat16 ? ToFloat(BFloat16{half}) : Float16ToFloat(half);
  }
  const void* data() const { return bytes_.data() + shift_; }

 private:
  DType dtype_;
  size_t shift_;
  std::vector<std::byte> bytes_;
};

/// Of many magnitudes, denormal ones in fp16.
float Normal(DType dtype, uint64_t i) {
  const int exponent =
      dtype == DType::kFloat16 ? static_cast<int>(i % 31) - 20 : static_cast<int>(i % 61) - 30;
  return StandardNormal(7, 1, i) * std::ldexp(1.0f, exponent);
}

Elements NormalElements(DType dtype, size_t byte_shift = 0) {
  Elements elements(dtype, kElements, byte_shift);
  for (uint64_t i = 0; i < kElements; ++i) elements.Set(i, Normal(dtype, i));
  return elements;
}

struct Sums {
  bool finite;
  std::vector<double> values;
};

Sums Fast(const Elements& elements, DType dtype, uint64_t count = kElements) {
  Sums sums{false, std::vector<double>(count / kBlockElements)};
  sums.finite = BlockSums(elements.data(), dtype, count, sums.values);
  return sums;
}

Sums Reference(const Elements& elements, DType dtype, uint64_t count = kElements) {
  Sums sums{false, std::vector<double>(count / kBlockElements)};
  sums.finite = BlockSumsReference(elements.data(), dtype, count, sums.values);
  return sums;
}

void ExpectSame(const Sums& actual, const Sums& expected) {
  EXPECT_EQ(actual.finite, expected.finite);
  ASSERT_EQ(actual.values.size(), expected.values.size());
  for (size_t i = 0; i < actual.values.size(); ++i) {
    if (std::isnan(expected.values[i])) {
      EXPECT_TRUE(std::isnan(actual.values[i]));
    } else {
      EXPECT_EQ(std::bit_cast<uint64_t>(actual.values[i]),
                std::bit_cast<uint64_t>(expected.values[i]));
    }
  }
}

/// Every test runs once for each instruction set of this machine.
class BlockSumsTest : public testing::TestWithParam<const char*> {
 private:
  const ForcedTarget target_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Targets, BlockSumsTest, testing::ValuesIn(VectorTargets()),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(BlockSumsTest, EqualsTheReferenceBitwise) {
  for (const DType dtype : kDTypes) {
    const Elements elements = NormalElements(dtype);
    ExpectSame(Fast(elements, dtype), Reference(elements, dtype));
  }
}

TEST_P(BlockSumsTest, EqualsTheReferenceOnEvery16BitPattern) {
  std::vector<uint16_t> patterns(1 << 16);
  for (uint32_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    std::vector<double> sums(patterns.size() / kBlockElements), expected = sums;
    EXPECT_FALSE(BlockSums(patterns.data(), dtype, patterns.size(), sums));
    EXPECT_FALSE(BlockSumsReference(patterns.data(), dtype, patterns.size(), expected));
    EXPECT_TRUE(std::isfinite(sums[0]));
    ExpectSame({false, sums}, {false, expected});
  }
}

TEST_P(BlockSumsTest, DoesNotDependOnAlignment) {
  for (const DType dtype : kDTypes) {
    const Sums expected = Fast(NormalElements(dtype), dtype);
    for (const size_t shift : {1, 2, 4, 6, 8, 12, 20, 36, 60, 62}) {
      SCOPED_TRACE(shift);
      ExpectSame(Fast(NormalElements(dtype, shift), dtype), expected);
    }
  }
}

TEST_P(BlockSumsTest, DoesNotDependOnWhichBlocksAreSummedTogether) {
  const Elements elements = NormalElements(DType::kFloat32);
  const Sums together = Fast(elements, DType::kFloat32);
  for (uint64_t block = 0; block < kBlocks; ++block) {
    double alone = 0;
    const auto* begin = static_cast<const float*>(elements.data()) + block * kBlockElements;
    EXPECT_TRUE(BlockSums(begin, DType::kFloat32, kBlockElements, {&alone, 1}));
    EXPECT_EQ(alone, together.values[block]);
  }
}

TEST_P(BlockSumsTest, AddsInTheStatedOrder) {
  // 2^54 in partial sum 0 swallows the 255 ones after it; the other 15 have their 256 ones each.
  for (const DType dtype : kWideDTypes) {
    Elements elements(dtype, kElements);
    for (uint64_t i = 0; i < kElements; ++i) elements.Set(i, 1);
    elements.Set(0, 0x1p27f);
    elements.Set(kBlockElements + 5, 0x1p27f);
    const Sums sums = Fast(elements, dtype);
    EXPECT_TRUE(sums.finite);
    EXPECT_EQ(sums.values[0], 0x1p54 + 15 * 256);
    EXPECT_EQ(sums.values[1], 0x1p54 + 15 * 256);
    EXPECT_EQ(sums.values[2], 4096);
  }
}

TEST_P(BlockSumsTest, IsTheSumOfSquaresWithinRounding) {
  for (const DType dtype : kDTypes) {
    const Elements elements = NormalElements(dtype);
    const Sums sums = Fast(elements, dtype);
    EXPECT_TRUE(sums.finite);
    for (uint64_t block = 0; block < kBlocks; ++block) {
      long double exact = 0;
      for (uint64_t i = block * kBlockElements; i < (block + 1) * kBlockElements; ++i) {
        const long double x = elements.Get(i);
        exact += x * x;
      }
      EXPECT_NEAR(sums.values[block] / static_cast<double>(exact), 1, 1e-13);
    }
  }
}

TEST_P(BlockSumsTest, ExtremesAreFiniteAndDenormalsCount) {
  using Limits = std::numeric_limits<float>;
  for (const float value : {Limits::max(), Limits::lowest(), Limits::denorm_min(), 3e-39f, -0.0f}) {
    Elements elements(DType::kFloat32, kElements);
    for (uint64_t i = 0; i < kElements; ++i) elements.Set(i, value);
    const Sums sums = Fast(elements, DType::kFloat32);
    EXPECT_TRUE(sums.finite) << value;
    const double expected = 4096.0 * value * value;
    EXPECT_NEAR(sums.values[1], expected, 1e-13 * expected);
  }
}

TEST_P(BlockSumsTest, OneNonFiniteElementAnywhereIsSeen) {
  using Limits = std::numeric_limits<float>;
  for (const DType dtype : kDTypes) {
    Elements elements = NormalElements(dtype);
    const auto expect_seen = [&](uint64_t i, float value) {
      elements.Set(i, value);
      const Sums sums = Fast(elements, dtype);
      EXPECT_FALSE(sums.finite) << "element " << i << " " << value;
      for (uint64_t block = 0; block < kBlocks; ++block) {
        EXPECT_EQ(std::isfinite(sums.values[block]), block != i / kBlockElements);
      }
      ExpectSame(sums, Reference(elements, dtype));
      elements.Set(i, Normal(dtype, i));
    };
    for (uint64_t lane = 0; lane < 16; ++lane) {
      const uint64_t places[] = {lane, 2048 + lane, kBlockElements - 16 + lane,
                                 kBlockElements + lane, kElements - 16 + lane};
      for (const uint64_t i : places) {
        for (const float value : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN()}) {
          expect_seen(i, value);
        }
      }
    }
    EXPECT_TRUE(Fast(elements, dtype).finite) << "the elements were put back";
  }
}

TEST_P(BlockSumsTest, NoBlocksAreFinite) {
  EXPECT_TRUE(BlockSums(nullptr, DType::kFloat32, 0, {}));
}

/// The figures of some blocks, and whether all elements are finite.
struct Figures {
  explicit Figures(size_t blocks) : sums(blocks), largest(blocks, -1), nonfinite(blocks, 77) {}
  BlockFigures view() { return {sums, largest, nonfinite}; }

  bool finite = false;
  std::vector<double> sums;
  std::vector<float> largest;
  std::vector<uint32_t> nonfinite;
};

Figures FastFigures(const void* gradient, DType dtype, uint64_t count) {
  Figures figures(count / kBlockElements);
  figures.finite = BlockSumsAndFigures(gradient, dtype, count, figures.view());
  return figures;
}

void ExpectSameAsReference(const void* gradient, DType dtype, uint64_t count) {
  const Figures fast = FastFigures(gradient, dtype, count);
  Figures reference(count / kBlockElements);
  reference.finite = BlockSumsAndFiguresReference(gradient, dtype, count, reference.view());
  ExpectSame({fast.finite, fast.sums}, {reference.finite, reference.sums});
  EXPECT_EQ(fast.largest, reference.largest);
  EXPECT_EQ(fast.nonfinite, reference.nonfinite);
}

TEST_P(BlockSumsTest, FiguresEqualTheReferenceAndLeaveTheSumsAsTheyAre) {
  for (const DType dtype : kDTypes) {
    for (const size_t shift : {0, 2, 4, 36}) {
      const Elements elements = NormalElements(dtype, shift);
      ExpectSameAsReference(elements.data(), dtype, kElements);
      const Figures figures = FastFigures(elements.data(), dtype, kElements);
      ExpectSame({figures.finite, figures.sums}, Fast(elements, dtype));
    }
  }
}

TEST_P(BlockSumsTest, FiguresEqualTheReferenceOnEvery16BitPattern) {
  std::vector<uint16_t> patterns(1 << 16);
  for (uint32_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    ExpectSameAsReference(patterns.data(), dtype, patterns.size());
  }
  const Figures figures = FastFigures(patterns.data(), DType::kFloat16, patterns.size());
  uint32_t nonfinite = 0;
  for (const uint32_t count : figures.nonfinite) nonfinite += count;
  EXPECT_EQ(nonfinite, 2 * 1024U);
  EXPECT_EQ(*std::ranges::max_element(figures.largest), 65504);
}

TEST_P(BlockSumsTest, TheLargestMagnitudeIsFoundAnywhere) {
  for (const DType dtype : kDTypes) {
    for (uint64_t i = 0; i < kElements; i += i % 37 == 0 ? 1 : 61) {
      Elements elements(dtype, kElements);
      elements.Set(i, i % 2 == 0 ? -3 : 3);
      const Figures figures = FastFigures(elements.data(), dtype, kElements);
      for (uint64_t block = 0; block < kBlocks; ++block) {
        ASSERT_EQ(figures.largest[block], block == i / kBlockElements ? 3 : 0) << i;
      }
    }
  }
}

TEST_P(BlockSumsTest, ElementsThatAreNotFiniteAreCountedAndTheLargestIsOfTheOthers) {
  using Limits = std::numeric_limits<float>;
  for (const DType dtype : kDTypes) {
    Elements elements(dtype, kElements);
    elements.Set(kBlockElements + 9, -2);
    for (const uint64_t i : {0, 5, 4095}) elements.Set(kBlockElements + i, -Limits::infinity());
    elements.Set(kBlockElements + 100, Limits::quiet_NaN());
    const Figures figures = FastFigures(elements.data(), dtype, kElements);
    EXPECT_FALSE(figures.finite);
    EXPECT_EQ(figures.nonfinite, (std::vector<uint32_t>{0, 4, 0}));
    EXPECT_EQ(figures.largest, (std::vector<float>{0, 2, 0}));
    ExpectSameAsReference(elements.data(), dtype, kElements);
  }
}

TEST_P(BlockSumsTest, APartIsABlockOfWhichTheRestIsZero) {
  for (const DType dtype : kDTypes) {
    for (const uint64_t count : {0, 1, 15, 64, 4095, 4096}) {
      Elements block(dtype, kBlockElements);
      for (uint64_t i = 0; i < count; ++i) block.Set(i, Normal(dtype, i));
      const GradientFigures part = PartFigures(block.data(), dtype, count);
      const Figures whole = FastFigures(block.data(), dtype, kBlockElements);
      EXPECT_EQ(part.sum_of_squares, whole.sums[0]);
      EXPECT_EQ(part.largest, whole.largest[0]);
      EXPECT_EQ(part.nonfinite, 0U);
    }
  }
}

TEST(BlockSumsDeathTest, RefusesPartsOfBlocks) {
  const std::vector<float> gradient(kBlockElements + 1);
  double sum = 0;
  EXPECT_DEATH(BlockSums(gradient.data(), DType::kFloat32, kBlockElements + 1, {&sum, 1}),
               "no whole blocks");
}

}  // namespace
}  // namespace penstock::kernels
