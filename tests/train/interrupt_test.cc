#include "train/interrupt.h"

#include <gtest/gtest.h>

#include <csignal>

namespace penstock::train {
namespace {

constexpr char kNotice[] = "penstock: ending";

TEST(Interrupt, TheFirstSignalIsARequest) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    ASSERT_NE(std::signal(signal, SIG_DFL), SIG_ERR);  // whoever started us may ignore it
    const Interrupt interrupt(kNotice);
    EXPECT_FALSE(interrupt.requested());
    ASSERT_EQ(::raise(signal), 0);
    EXPECT_TRUE(interrupt.requested());
  }
}

TEST(Interrupt, TheFirstSignalSaysWhatHappens) {
  const Interrupt interrupt(kNotice);
  testing::internal::CaptureStderr();
  ASSERT_EQ(::raise(SIGINT), 0);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "penstock: ending\n");
}

TEST(Interrupt, AHangUpThatIsIgnoredStaysIgnored) {
  ASSERT_NE(std::signal(SIGHUP, SIG_IGN), SIG_ERR);
  {
    const Interrupt interrupt(kNotice);
    ASSERT_EQ(::raise(SIGHUP), 0);
    EXPECT_FALSE(interrupt.requested());
  }
  EXPECT_EQ(std::signal(SIGHUP, SIG_DFL), SIG_IGN);
}

TEST(InterruptDeathTest, TheSecondSignalEndsTheProcessWith130) {
  EXPECT_EXIT(
      {
        const Interrupt interrupt(kNotice);
        ::raise(SIGINT);
        ::raise(SIGTERM);
      },
      ::testing::ExitedWithCode(130), "");
}

TEST(InterruptDeathTest, GivesTheSignalsBack) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    EXPECT_EXIT(
        {
          std::signal(signal, SIG_DFL);
          { const Interrupt interrupt(kNotice); }
          ::raise(signal);
        },
        ::testing::KilledBySignal(signal), "");
  }
}

}  // namespace
}  // namespace penstock::train
