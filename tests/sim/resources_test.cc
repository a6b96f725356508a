#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "sim/clock.h"
#include "sim/cores.h"
#include "sim/drive.h"
#include "sim/stream.h"

namespace penstock::sim {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

void RunToEnd(Clock& clock) {
  while (clock.Step()) {
  }
}

TEST(ClockTest, EventsOfOneTimeHappenInTheOrderInWhichTheyWereAskedFor) {
  Clock clock;
  std::string order;
  clock.After(2, [&] { order += "c"; });
  clock.After(1, [&] {
    order += "a";
    clock.After(1, [&] { order += "d"; });
    clock.After(0, [&] { order += "b"; });
  });
  RunToEnd(clock);
  EXPECT_EQ(order, "abcd");
  EXPECT_EQ(clock.now(), 2);
}

class CoresTest : public ::testing::Test {
 protected:
  void Work(const std::string& name, Seconds time, double threads) {
    cores_.Work(time, threads, [this, name] { ended_[name] = clock_.now(); });
  }

  Clock clock_;
  Cores cores_{clock_, 2};
  std::map<std::string, Seconds> ended_;
};

TEST_F(CoresTest, WorkThatFitsBesideEachOtherTakesItsTime) {
  Work("a", 1, 1);
  Work("b", 3, 1);
  RunToEnd(clock_);
  EXPECT_THAT(ended_["a"], DoubleNear(1, 1e-9));
  EXPECT_THAT(ended_["b"], DoubleNear(3, 1e-9));
}

TEST_F(CoresTest, AnUpdateBesideComputationCostsWhatItTakesOfTheCores) {
  Work("compute", 1, 2);
  Work("update", 0.3, 1);
  RunToEnd(clock_);
  EXPECT_THAT(ended_["update"], DoubleNear(0.45, 1e-9));
  EXPECT_THAT(ended_["compute"], DoubleNear(1 + 0.3 / 2, 1e-9));
}

TEST_F(CoresTest, WhatComesLaterSlowsOnlyWhatIsLeft) {
  Work("first", 1, 2);
  clock_.After(0.5, [&] { Work("second", 1, 2); });
  RunToEnd(clock_);
  EXPECT_THAT(ended_["first"], DoubleNear(1.5, 1e-9));
  EXPECT_THAT(ended_["second"], DoubleNear(2, 1e-9));
}

TEST_F(CoresTest, WorkEndsHoweverLateItIs) {
  clock_.After(1e9, [&] {
    for (const char* name : {"a", "b", "c"}) Work(name, 1e-7, 2);
  });
  RunToEnd(clock_);
  EXPECT_EQ(ended_.size(), 3);
}

class DriveTest : public ::testing::Test {
 protected:
  void Submit(Drive& drive, const std::string& name, aio::Operation operation, Bytes size,
              aio::Priority priority = aio::Priority::kStateRead) {
    drive.Submit(operation, size, priority, [this, name] {
      ended_[name] = clock_.now();
      order_.push_back(name);
    });
  }

  static constexpr double kMiB = 1 << 20;
  Clock clock_;
  std::map<std::string, Seconds> ended_;
  std::vector<std::string> order_;
};

TEST_F(DriveTest, ReadsAndWritesHavePipesOfTheirOwnOrShareOne) {
  const auto write_ends = [this](bool shared) {
    const Seconds begin = clock_.now();
    Drive drive(
        clock_,
        {.read_bytes_a_second = 4 * kMiB, .write_bytes_a_second = 2 * kMiB, .shared = shared});
    Submit(drive, "read", aio::Operation::kRead, 4_MiB);
    Submit(drive, "write", aio::Operation::kWrite, 4_MiB);
    RunToEnd(clock_);
    return ended_["write"] - begin;
  };
  EXPECT_THAT(write_ends(false), DoubleNear(2, 1e-9));
  EXPECT_THAT(write_ends(true), DoubleNear(2, 1e-9)) << "both pass at the speed of reads";
}

TEST_F(DriveTest, LatenciesOverlap) {
  Drive drive(clock_, {.read_bytes_a_second = kMiB, .latency = 5});
  Submit(drive, "a", aio::Operation::kRead, 1_MiB);
  Submit(drive, "b", aio::Operation::kRead, 1_MiB);
  RunToEnd(clock_);
  EXPECT_THAT(ended_["a"], DoubleNear(6, 1e-9));
  EXPECT_THAT(ended_["b"], DoubleNear(7, 1e-9));
}

TEST_F(DriveTest, WhatWaitsForAPlaceGoesByPriority) {
  Drive drive(clock_, {.read_bytes_a_second = kMiB, .queue_depth = 1});
  Submit(drive, "first", aio::Operation::kRead, 2_MiB, aio::Priority::kStateRead);
  Submit(drive, "state", aio::Operation::kRead, 1_MiB, aio::Priority::kStateRead);
  Submit(drive, "parameters", aio::Operation::kRead, 1_MiB, aio::Priority::kParameterRead);
  RunToEnd(clock_);
  EXPECT_THAT(order_, ElementsAre("parameters", "first", "state"));
  EXPECT_EQ(drive.read_bytes(), (4_MiB).value);
}

TEST_F(DriveTest, StateReadsLeaveHalfOfThePlacesToWriteBacksThatWait) {
  const auto end_of_write = [this](aio::Priority of_reads) {
    const Seconds begin = clock_.now();
    Drive drive(clock_,
                {.read_bytes_a_second = kMiB, .write_bytes_a_second = kMiB, .queue_depth = 4});
    Submit(drive, "reads", aio::Operation::kRead, 12_MiB, of_reads);
    Submit(drive, "write", aio::Operation::kWrite, 4_MiB, aio::Priority::kWriteBack);
    RunToEnd(clock_);
    EXPECT_THAT(ended_["reads"] - begin, DoubleNear(12, 1e-9)) << "the pipe of reads stays full";
    return ended_["write"] - begin;
  };
  // A write-back gets the first two places that reads give up, and then keeps two.
  EXPECT_THAT(end_of_write(aio::Priority::kStateRead), DoubleNear(5, 1e-9));
  EXPECT_GT(end_of_write(aio::Priority::kParameterRead), 10) << "the device waits for these";
}

TEST(StreamTest, WorkIsDoneInOrderAndWaitsForEventsOfOthers) {
  Clock clock;
  Stream a;
  Stream b;
  std::string order;
  const auto work = [&](Stream& stream, const std::string& name, Seconds time) {
    stream.Work([&, name, time](Stream::Done done) {
      clock.After(time, [&, name, done = std::move(done)] {
        order += name;
        done();
      });
    });
  };
  work(a, "1", 2);
  const Event first = a.Record();
  work(a, "3", 2);
  b.Wait(first);
  work(b, "2", 1);
  RunToEnd(clock);
  EXPECT_EQ(order, "123");
  Event().Then([&] { order += "4"; });
  EXPECT_EQ(order, "1234") << "an event that was never recorded has happened";
}

}  // namespace
}  // namespace penstock::sim
