#include "train/process/interrupt.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

namespace penstock::train {
namespace {

constexpr char kNotice[] = "penstock: ending";
/// Every signal is a request of its own.
constexpr std::chrono::nanoseconds kEach{0};
/// All signals of a test come within this time.
constexpr std::chrono::hours kTogether{1};

// Every test has a process of its own, as signals are counted for its whole life.

/// Ends the process with 0 where `holds`, else with 1.
[[noreturn]] void EndWith(bool holds) { ::_exit(holds ? 0 : 1); }

TEST(InterruptDeathTest, TheFirstSignalIsARequestAndSaysWhatHappens) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    EXPECT_EXIT(
        {
          std::signal(signal, SIG_DFL);  // whoever started us may ignore it
          const Interrupt interrupt(kNotice);
          if (interrupt.requested()) EndWith(false);
          ::raise(signal);
          EndWith(interrupt.requested());
        },
        testing::ExitedWithCode(0), "^penstock: ending\n$");
  }
}

TEST(InterruptDeathTest, AHangUpThatIsIgnoredStaysIgnored) {
  EXPECT_EXIT(
      {
        std::signal(SIGHUP, SIG_IGN);
        {
          const Interrupt interrupt(kNotice);
          ::raise(SIGHUP);
          if (interrupt.requested()) EndWith(false);
        }
        EndWith(std::signal(SIGHUP, SIG_DFL) == SIG_IGN);
      },
      testing::ExitedWithCode(0), "^$");
}

TEST(InterruptDeathTest, TheSecondRequestEndsTheProcessWith130) {
  EXPECT_EXIT(
      {
        const Interrupt interrupt(kNotice, kEach);
        ::raise(SIGINT);
        ::raise(SIGTERM);
      },
      testing::ExitedWithCode(130), "");
}

TEST(InterruptDeathTest, SignalsThatComeTogetherAreOneRequest) {
  EXPECT_EXIT(
      {
        const Interrupt interrupt(kNotice, kTogether);
        for (const int signal : {SIGTERM, SIGTERM, SIGHUP, SIGINT, SIGTERM}) ::raise(signal);
        EndWith(interrupt.requested());
      },
      testing::ExitedWithCode(0), "^penstock: ending\n$");
}

TEST(InterruptDeathTest, SignalsThatComeTogetherAfterTheWorkChangeNothing) {
  EXPECT_EXIT(
      {
        { const Interrupt interrupt(kNotice, kTogether); }
        ::raise(SIGTERM);
        ::raise(SIGHUP);
        EndWith(true);
      },
      testing::ExitedWithCode(0), "^$");
}

TEST(InterruptDeathTest, AFirstSignalAfterTheWorkChangesNothing) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    EXPECT_EXIT(
        {
          std::signal(signal, SIG_DFL);
          { const Interrupt interrupt(kNotice); }
          ::raise(signal);
          EndWith(true);
        },
        testing::ExitedWithCode(0), "^$");
  }
}

TEST(InterruptDeathTest, ASecondRequestAfterTheWorkEndsTheProcessWith130) {
  for (const bool first_came_before : {false, true}) {
    EXPECT_EXIT(
        {
          {
            const Interrupt interrupt(kNotice, kEach);
            if (first_came_before) ::raise(SIGINT);
          }
          if (!first_came_before) ::raise(SIGINT);
          ::raise(SIGINT);
        },
        testing::ExitedWithCode(130), "");
  }
}

TEST(InterruptDeathTest, ASignalBetweenTwoPartsOfTheWorkIsARequestToTheSecond) {
  EXPECT_EXIT(
      {
        { const Interrupt first(kNotice); }
        ::raise(SIGINT);
        const Interrupt second(kNotice);
        EndWith(second.requested());
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace penstock::train
