#include "base/denormals.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/base/denormals_flush.h"

namespace penstock {
namespace {

TEST(KeepsDenormals, IsTrueUnlessTheProcessorIsToldOtherwise) {
  EXPECT_TRUE(KeepsDenormals());
  for (const uint64_t way : kFlushes) {
    {
      const DenormalsFlush flush(way);
      EXPECT_FALSE(KeepsDenormals()) << std::hex << way;
    }
    EXPECT_TRUE(KeepsDenormals());
  }
}

TEST(DefaultArithmetic, KeepsDenormalsInItsThreadAndThoseThatItStartsUntilItEnds) {
  for (const uint64_t way : kFlushes) {
    const DenormalsFlush flush(way);
    const uint64_t before = FloatControl();
    bool kept = false;
    {
      const DefaultArithmetic arithmetic;
      EXPECT_TRUE(KeepsDenormals()) << std::hex << way;
      std::thread([&] { kept = KeepsDenormals(); }).join();
    }
    EXPECT_TRUE(kept) << std::hex << way;
    EXPECT_EQ(FloatControl() & way, before & way);
  }
}

TEST(DefaultArithmetic, RoundsToNearestUntilItEnds) {
  std::fesetround(FE_UPWARD);
  int within = FE_UPWARD;
  {
    const DefaultArithmetic arithmetic;
    within = std::fegetround();
  }
  const int after = std::fegetround();
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(within, FE_TONEAREST);
  EXPECT_EQ(after, FE_UPWARD);
}

TEST(KeepsDenormals, IsFalseInAThreadOfAThreadThatFlushes) {
  bool kept = true;
  {
    const DenormalsFlush flush(kFlushes[0]);
    std::thread([&] { kept = KeepsDenormals(); }).join();
  }
  EXPECT_FALSE(kept);
}

}  // namespace
}  // namespace penstock
