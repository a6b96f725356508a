#include "device/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>

#include "base/mapping.h"
#include "device/device.h"

namespace penstock::device {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Bytes kLimit = 4_KiB;
constexpr Bytes kQuarter = 1_KiB;

class ArenaTest : public ::testing::Test {
 protected:
  std::byte* Take(Bytes size) {
    Result<std::byte*> taken = arena_.Take(size, "a test");
    EXPECT_TRUE(taken.ok()) << taken.error().message;
    return taken.ok() ? *taken : nullptr;
  }
  bool Fits(Bytes size) {
    Result<std::byte*> taken = arena_.Take(size, "a test");
    if (taken.ok()) arena_.Give(*taken, size);
    return taken.ok();
  }

  Mapping memory_ = std::move(Mapping::Create(kLimit)).value();
  Arena arena_{memory_.data(), kLimit};
};

TEST_F(ArenaTest, PiecesAreAlignedAndDoNotOverlap) {
  std::byte* const first = Take(1_B);
  std::byte* const second = Take(257_B);
  std::byte* const third = Take(256_B);
  EXPECT_EQ(first, memory_.data());
  EXPECT_EQ(second - first, 256);
  EXPECT_EQ(third - second, 512);
  EXPECT_EQ(arena_.used(), 1024_B);
  arena_.Give(first, 1_B);
  arena_.Give(second, 257_B);
  arena_.Give(third, 256_B);
  EXPECT_EQ(arena_.used(), 0_B);
}

TEST_F(ArenaTest, ExactlyTheLimitFits) {
  std::byte* const all = Take(kLimit);
  EXPECT_EQ(all, memory_.data());
  EXPECT_EQ(arena_.used(), kLimit);
  arena_.Give(all, kLimit);
}

TEST_F(ArenaTest, OneByteMoreThanTheLimitIsRefusedWithTheSumAndTheLimit) {
  const Result<std::byte*> taken = arena_.Take(kLimit + 1_B, "the logits");
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().code, ErrorCode::kBudget);
  EXPECT_THAT(taken.error().message,
              AllOf(HasSubstr("the logits"), HasSubstr("4352 bytes"), HasSubstr("4096 bytes")));
}

TEST_F(ArenaTest, OneByteBeyondAFullArenaIsRefusedWithTheSumAndTheLimit) {
  std::byte* const all = Take(kLimit);
  const Result<std::byte*> taken = arena_.Take(1_B, "one more");
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().code, ErrorCode::kBudget);
  EXPECT_THAT(taken.error().message,
              AllOf(HasSubstr("one more"), HasSubstr("4352 bytes"), HasSubstr("4096 bytes")));
  EXPECT_EQ(arena_.used(), kLimit) << "a refusal takes nothing";
  arena_.Give(all, kLimit);
}

TEST_F(ArenaTest, AnAbsurdSizeIsRefusedWithoutWrappingAround) {
  std::byte* const some = Take(kQuarter);
  for (const uint64_t below : {0, 1, 255, 256, 1024, 1025}) {
    const Bytes size{std::numeric_limits<uint64_t>::max() - below};
    const Result<std::byte*> taken = arena_.Take(size, "everything");
    ASSERT_FALSE(taken.ok()) << size.value;
    EXPECT_EQ(taken.error().code, ErrorCode::kBudget);
  }
  arena_.Give(some, kQuarter);
}

TEST_F(ArenaTest, ThePieceWithTheLowestAddressThatFitsIsReused) {
  std::byte* const a = Take(kQuarter);
  std::byte* const b = Take(kQuarter);
  std::byte* const c = Take(kQuarter);
  arena_.Give(a, kQuarter);
  arena_.Give(c, kQuarter);
  EXPECT_EQ(Take(512_B), a);
  EXPECT_EQ(Take(kQuarter), c) << "the rest of the first hole is too small";
  EXPECT_EQ(Take(512_B), a + 512);
  arena_.Give(a, 512_B);
  arena_.Give(a + 512, 512_B);
  arena_.Give(b, kQuarter);
  arena_.Give(c, kQuarter);
}

TEST_F(ArenaTest, HolesGrowTogetherInEveryOrderOfGivingBack) {
  int order[] = {0, 1, 2, 3};
  do {
    std::byte* pieces[4];
    for (std::byte*& piece : pieces) piece = Take(kQuarter);
    for (const int i : order) {
      EXPECT_FALSE(Fits(kLimit));
      arena_.Give(pieces[i], kQuarter);
    }
    EXPECT_TRUE(Fits(kLimit));
  } while (std::next_permutation(std::begin(order), std::end(order)));
}

TEST_F(ArenaTest, WhenOnlyHolesAreTooSmallTheErrorSaysSo) {
  std::byte* pieces[4];
  for (std::byte*& piece : pieces) piece = Take(kQuarter);
  arena_.Give(pieces[0], kQuarter);
  arena_.Give(pieces[2], kQuarter);
  const Result<std::byte*> taken = arena_.Take(2 * kQuarter, "the logits");
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().code, ErrorCode::kBudget);
  EXPECT_THAT(taken.error().message,
              AllOf(HasSubstr("the logits"), HasSubstr("largest free piece has 1024 bytes")));
  arena_.Give(pieces[1], kQuarter);
  arena_.Give(pieces[3], kQuarter);
}

TEST_F(ArenaTest, ThePeakIsTheLargestSumEverTaken) {
  std::byte* const a = Take(kQuarter);
  std::byte* const b = Take(2 * kQuarter);
  arena_.Give(a, kQuarter);
  arena_.Give(b, 2 * kQuarter);
  arena_.Give(Take(kQuarter), kQuarter);
  EXPECT_EQ(arena_.used(), 0_B);
  EXPECT_EQ(arena_.peak(), 3 * kQuarter);
}

TEST_F(ArenaTest, ContainsExactlyItsRange) {
  EXPECT_TRUE(arena_.Contains(memory_.data(), kLimit));
  EXPECT_TRUE(arena_.Contains(memory_.data() + 4095, 1_B));
  EXPECT_FALSE(arena_.Contains(memory_.data() + 1, kLimit));
  EXPECT_FALSE(arena_.Contains(memory_.data() - 1, 1_B));
  EXPECT_FALSE(arena_.Contains(memory_.data() + 4096, 1_B));
}

using ArenaDeathTest = ArenaTest;

TEST_F(ArenaDeathTest, GivingBackTwiceIsABug) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  std::byte* const a = Take(kQuarter);
  std::byte* const b = Take(kQuarter);
  arena_.Give(a, kQuarter);
  EXPECT_DEATH(arena_.Give(a, kQuarter), "given back twice");
  arena_.Give(b, kQuarter);
}

#if defined(__SANITIZE_ADDRESS__)

class ArenaSanitizerDeathTest : public ArenaTest {
 protected:
  void SetUp() override { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(ArenaSanitizerDeathTest, MemoryThatWasNeverTakenIsOffLimits) {
  EXPECT_DEATH(memory_.data()[0] = std::byte{1}, "use-after-poison");
}

TEST_F(ArenaSanitizerDeathTest, TheByteBehindAPieceIsOffLimits) {
  for (const Bytes size : {300_B, 512_B}) {  // padding; the next hole
    std::byte* const piece = Take(size);
    piece[size.value - 1] = std::byte{1};
    EXPECT_DEATH(piece[size.value] = std::byte{1}, "use-after-poison") << size.value;
    arena_.Give(piece, size);
  }
}

TEST_F(ArenaSanitizerDeathTest, MemoryThatWasGivenBackIsOffLimitsUntilItIsTakenAgain) {
  std::byte* const piece = Take(300_B);
  arena_.Give(piece, 300_B);
  EXPECT_DEATH(piece[0] = std::byte{1}, "use-after-poison");
  ASSERT_EQ(Take(512_B), piece);
  piece[511] = std::byte{1};
  arena_.Give(piece, 512_B);
}

#else

TEST(ArenaSanitizerDeathTest, NeedsTheAddressSanitizer) {
  GTEST_SKIP() << "this build has no address sanitizer";
}

#endif

}  // namespace
}  // namespace penstock::device
