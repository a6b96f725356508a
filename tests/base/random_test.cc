#include "base/random.h"

#include <gmock/gmock.h>

#include <cmath>
#include <vector>

namespace penstock {
namespace {

using testing::ElementsAre;

// kat_vectors of the Random123 distribution, philox 4x32 with 10 rounds: counter words first.
TEST(Philox, AgreesWithTheKnownAnswers) {
  EXPECT_THAT(Philox(0, 0, 0), ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(Philox(UINT64_MAX, UINT64_MAX, UINT64_MAX),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  // The counter 243f6a88 85a308d3 13198a2e 03707344 under the key a4093822 299f31d0.
  EXPECT_THAT(Philox(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(StandardNormal, HasTheMomentsOfTheDistribution) {
  constexpr int kCount = 200'000;
  double sum = 0;
  double squares = 0;
  double cubes = 0;
  double fourths = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = StandardNormal(42, 7, static_cast<uint64_t>(i));
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    cubes += x * x * x;
    fourths += x * x * x * x;
  }
  // Six standard errors of each estimate: sqrt of 1, 2, 15 and 96 over the count.
  const double unit = 6 / std::sqrt(kCount);
  EXPECT_NEAR(sum / kCount, 0, unit);
  EXPECT_NEAR(squares / kCount, 1, unit * std::sqrt(2));
  EXPECT_NEAR(cubes / kCount, 0, unit * std::sqrt(15));
  EXPECT_NEAR(fourths / kCount, 3, unit * std::sqrt(96));
}

TEST(StandardNormal, NeighboursAndStreamsAreUncorrelated) {
  constexpr int kCount = 100'000;
  double pairs = 0;
  double streams = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double x = StandardNormal(1, 0, i);
    pairs += x * StandardNormal(1, 0, i + 1);
    streams += x * StandardNormal(1, 1, i);
  }
  const double bound = 6 / std::sqrt(kCount);
  EXPECT_NEAR(pairs / kCount, 0, bound);
  EXPECT_NEAR(streams / kCount, 0, bound);
}

TEST(StandardNormal, DependsOnKeyStreamAndIndexAlone) {
  EXPECT_EQ(StandardNormal(1, 2, 3), StandardNormal(1, 2, 3));
  EXPECT_NE(StandardNormal(1, 2, 3), StandardNormal(2, 2, 3));
  EXPECT_NE(StandardNormal(1, 2, 3), StandardNormal(1, 3, 3));
  EXPECT_NE(StandardNormal(1, 2, 3), StandardNormal(1, 2, 2));
}

TEST(StandardNormal, OfARangeIsThatOfEachOfItsElements) {
  for (const uint64_t begin :
       {uint64_t{0}, uint64_t{1}, uint64_t{6}, uint64_t{7}, ~uint64_t{0} - 999}) {
    for (const size_t size : {0, 1, 2, 3, 998}) {
      std::vector<float> values(size);
      FillStandardNormal(9, 4, begin, values);
      for (size_t i = 0; i < size; ++i) {
        ASSERT_EQ(values[i], StandardNormal(9, 4, begin + i)) << begin << " + " << i;
      }
    }
  }
}

TEST(Permutation, IsABijectionForEverySize) {
  std::vector<uint64_t> sizes = {255, 256, 257, 1000, 1023, 1024, 1025, 4097, 10'007};
  for (uint64_t n = 1; n <= 70; ++n) sizes.push_back(n);
  for (const uint64_t n : sizes) {
    const Permutation permutation(11, 5, n);
    std::vector<bool> seen(n);
    for (uint64_t position = 0; position < n; ++position) {
      const uint64_t element = permutation(position);
      ASSERT_LT(element, n);
      ASSERT_FALSE(seen[element]) << "element " << element << " of " << n << " came twice";
      seen[element] = true;
    }
  }
}

TEST(Permutation, StaysInRangeForHugeSizes) {
  for (const uint64_t n : {(uint64_t{1} << 40) + 1, uint64_t{1} << 63, UINT64_MAX}) {
    const Permutation permutation(1, 0, n);
    for (const uint64_t position : {uint64_t{0}, n / 2, n - 1}) EXPECT_LT(permutation(position), n);
  }
}

TEST(Permutation, MovesElementsAndDiffersByKeyAndStream) {
  constexpr uint64_t kSize = 1000;
  const Permutation base(1, 0, kSize);
  const Permutation other_key(2, 0, kSize);
  const Permutation other_stream(1, 1, kSize);
  int fixed = 0;
  int same_key = 0;
  int same_stream = 0;
  for (uint64_t i = 0; i < kSize; ++i) {
    fixed += base(i) == i ? 1 : 0;
    same_key += base(i) == other_key(i) ? 1 : 0;
    same_stream += base(i) == other_stream(i) ? 1 : 0;
  }
  // A random permutation has one fixed point on average; more than ten have a chance of about 1e-8.
  EXPECT_LE(fixed, 10);
  EXPECT_LE(same_key, 10);
  EXPECT_LE(same_stream, 10);
}

TEST(PermutationDeathTest, PositionsOutOfRangeAreABug) {
  const Permutation permutation(1, 0, 3);
  EXPECT_DEATH((void)permutation(3), "check failed");
  EXPECT_DEATH(Permutation(1, 0, 0), "check failed");
}

TEST(FillRandom, IsTheSameBytesForAKeyAtAnyLength) {
  std::vector<std::byte> whole(100);
  std::vector<std::byte> part(37);
  std::vector<std::byte> other(100);
  FillRandom(1, whole);
  FillRandom(1, part);
  FillRandom(2, other);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin()));
  EXPECT_NE(whole, other);
  // No 16 bytes stand twice.
  for (size_t at = 16; at + 16 <= whole.size(); at += 16) {
    EXPECT_FALSE(
        std::equal(whole.begin(), whole.begin() + 16, whole.begin() + static_cast<ptrdiff_t>(at)));
  }
}

}  // namespace
}  // namespace penstock
