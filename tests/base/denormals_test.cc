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
