// Measuring a drive: the file, the loop, one probe; on small files.
#include "aio/probe.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "aio/probe_file.h"
#include "tests/aio/wrapped_engine.h"

namespace penstock::aio {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

const StopRequested kNever = [] { return false; };

/// A folder of its own below the working folder, which is on a drive with O_DIRECT.
class ProbeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::absolute(std::string("probe_") +
                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directory(folder_);
    Result<ProbeFile> file = ProbeFile::Create(folder_, 4_MiB, 1_MiB);
    if (!file.ok() && file.error().code == ErrorCode::kUnavailable) {
      GTEST_SKIP() << file.error().message;
    }
    ASSERT_TRUE(file.ok()) << file.error().message;
    file_.emplace(std::move(file).value());
  }
  void TearDown() override {
    file_.reset();
    fs::remove_all(folder_);
  }

  fs::path folder_;
  std::optional<ProbeFile> file_;
};

/// An engine that passes requests on and watches them.
class WatchedEngine final : public WrappedEngine {
 public:
  explicit WatchedEngine(const EngineOptions& options)
      : WrappedEngine(CreateEngine(options).value()) {}

  Ticket Submit(Request request) override {
    {
      const std::lock_guard lock(mutex);
      ++in_flight;
      most = std::max(most, in_flight);
      submitted.emplace_back(request.operation, request.offset.value);
      if (request.buffer.size() != 64 * 1024) ++odd_sizes;
    }
    auto inner = std::move(request.on_complete);
    request.on_complete = [this, inner](const Status& status) {
      // The next one is submitted inside; this one is over by then.
      {
        const std::lock_guard lock(mutex);
        --in_flight;
      }
      inner(status);
    };
    return WrappedEngine::Submit(std::move(request));
  }

  std::mutex mutex;
  int in_flight = 0;
  int most = 0;
  int odd_sizes = 0;
  std::vector<std::pair<Operation, uint64_t>> submitted;
};

EngineOptions Threads() {
  return {.kind = EngineKind::kThreads, .queue_depth = 64, .thread_count = 4};
}

/// Ends with the bytes, however long they take.
ProbeFile::Pass PassOf(Direction direction, int depth, Bytes bytes) {
  return {.block_size = 64_KiB,
          .queue_depth = depth,
          .direction = direction,
          .limit = {.bytes = bytes, .time = std::chrono::hours(1)}};
}

TEST_F(ProbeTest, FileHasNoNameAndAllOfItIsReserved) {
  EXPECT_TRUE(fs::is_empty(folder_));
  EXPECT_EQ(*file_->file().Size(), 4_MiB);
}

TEST_F(ProbeTest, WhatAKilledProcessOfOurNumberLeftIsNoObstacle) {
  std::ofstream(folder_ / fmt::format("penstock-tune-{}.tmp", ::getpid())).close();
  ASSERT_FALSE(fs::is_empty(folder_));
  const Result<ProbeFile> file = ProbeFile::Create(folder_, 1_MiB, 1_MiB);
  EXPECT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(ProbeTest, FillWritesEveryByteWithWhatCannotBeCompressed) {
  ASSERT_TRUE(file_->Fill(Threads(), Seconds::max(), kNever).ok());
  EXPECT_EQ(file_->written(), 4_MiB);
  std::vector<unsigned char> bytes(4 << 20);
  const int fd = file_->file().fd();
  // Through the buffers of the file, which are aligned as O_DIRECT needs it.
  for (size_t at = 0; at < bytes.size(); at += file_->buffers().size()) {
    ASSERT_EQ(::pread(fd, file_->buffers().data(), file_->buffers().size(), static_cast<off_t>(at)),
              static_cast<ssize_t>(file_->buffers().size()));
    std::memcpy(bytes.data() + at, file_->buffers().data(), file_->buffers().size());
  }
  std::array<int, 256> histogram{};
  for (const unsigned char byte : bytes) ++histogram[byte];
  // 16384 of each are expected, with a standard deviation of 128.
  for (const int count : histogram) EXPECT_NEAR(count, 16384, 1024);
  // No two pages are alike in the part that was filled from different buffers.
  std::set<std::string> pages;
  for (size_t at = 0; at < (1U << 20); at += 4096) {
    pages.emplace(reinterpret_cast<const char*>(bytes.data()) + at, 4096);
  }
  EXPECT_EQ(pages.size(), 256U);
}

TEST_F(ProbeTest, FillThatIsInterruptedIsCancelled) {
  const Status status = file_->Fill(Threads(), Seconds::max(), [] { return true; });
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
}

TEST_F(ProbeTest, FillOnADriveThatIsTooSlowEndsWithTheTimeAndSaysHowFarItCame) {
  const Status status = file_->Fill(Threads(), Seconds(0), kNever);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(status.error().message, HasSubstr("took " + ToString(1_MiB)));
}

TEST_F(ProbeTest, LoopKeepsExactlyTheDepthInFlight) {
  WatchedEngine engine(Threads());
  const auto outcome = file_->Run(engine, PassOf(Direction::kWrite, 8, 16_MiB), kNever);
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  EXPECT_EQ(outcome->moved, 16_MiB);
  EXPECT_EQ(outcome->latencies_us.size(), 256U);
  EXPECT_EQ(engine.most, 8);
  EXPECT_EQ(engine.odd_sizes, 0);
  EXPECT_EQ(engine.in_flight, 0);
}

TEST_F(ProbeTest, LoopGoesThroughTheFileInOrderAndContinuesWhereItEnded) {
  WatchedEngine engine(Threads());
  ASSERT_TRUE(file_->Run(engine, PassOf(Direction::kRead, 1, 3_MiB), kNever).ok());
  ASSERT_TRUE(file_->Run(engine, PassOf(Direction::kRead, 1, 3_MiB), kNever).ok());
  ASSERT_EQ(engine.submitted.size(), 96U);
  for (size_t i = 0; i < 96; ++i) {
    EXPECT_EQ(engine.submitted[i].second, i % 64 * 64 * 1024) << i;
  }
  EXPECT_EQ(file_->written(), 0_B);
}

TEST_F(ProbeTest, BothDirectionsMoveEqualBytesInHalvesThatDoNotMeet) {
  WatchedEngine engine(Threads());
  ASSERT_TRUE(file_->Run(engine, PassOf(Direction::kBoth, 4, 8_MiB), kNever).ok());
  size_t reads = 0;
  for (const auto& [operation, offset] : engine.submitted) {
    const bool read = operation == Operation::kRead;
    reads += read ? 1 : 0;
    EXPECT_EQ(offset < 2 * 1024 * 1024, read);
  }
  EXPECT_EQ(reads * 2, engine.submitted.size());
  EXPECT_EQ(file_->written(), 4_MiB);
}

TEST_F(ProbeTest, LoopEndsByTimeToo) {
  const auto engine = CreateEngine(Threads()).value();
  ProbeFile::Pass pass = PassOf(Direction::kRead, 2, 1024_GiB);
  pass.limit.time = std::chrono::milliseconds(1);
  EXPECT_TRUE(file_->Run(*engine, pass, kNever).ok());
}

TEST_F(ProbeTest, LoopMovesABlockHoweverShortTheTime) {
  const auto engine = CreateEngine(Threads()).value();
  ProbeFile::Pass pass = PassOf(Direction::kRead, 2, 1024_GiB);
  pass.limit.time = Seconds(0);
  EXPECT_EQ(file_->Run(*engine, pass, kNever)->moved, 64_KiB);
}

TEST_F(ProbeTest, LoopEndsWithTheErrorOfARequest) {
  EngineOptions options = Threads();
  options.faults = FaultPlan{.faults = {{.first_block = 5}}};
  const auto engine = CreateEngine(options).value();
  const auto outcome = file_->Run(*engine, PassOf(Direction::kWrite, 4, 1024_GiB), kNever);
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ErrorCode::kIo);
}

TEST(BlockWalk, StartsOverBeforeABlockThatDoesNotFit) {
  BlockWalk walk(FileOffset{4096}, 10_KiB, 4_KiB, 12_KiB);
  EXPECT_EQ(walk.Next().value, 8192U);
  EXPECT_EQ(walk.Next().value, 4096U);
  EXPECT_EQ(walk.Next().value, 8192U);
}

TEST_F(ProbeTest, ProbeCountsBytesAndTimes) {
  Result<ProbeRig> rig = ProbeRig::Create(
      {.kind = EngineKind::kThreads, .block_size = 64_KiB, .queue_depth = 4}, &*file_);
  ASSERT_TRUE(rig.ok()) << rig.error().message;
  const Result<Probe> probe =
      rig->Measure(Direction::kWrite, {.bytes = 4_MiB, .time = std::chrono::hours(1)}, kNever);
  ASSERT_TRUE(probe.ok()) << probe.error().message;
  EXPECT_GT(probe->gbps, 0);
  EXPECT_GT(probe->cpu_s_per_gb, 0);
  EXPECT_LE(probe->median_us, probe->p99_us);
  EXPECT_EQ(file_->written(), 4_MiB);
}

TEST_F(ProbeTest, AllOfTheBuffersAreRegisteredForAnyBytesInFlight) {
  for (const int depth : {1, 4}) {
    Result<ProbeRig> rig = ProbeRig::Create(
        {.kind = EngineKind::kUring, .block_size = 64_KiB, .queue_depth = depth}, &*file_);
    if (!rig.ok()) GTEST_SKIP() << rig.error().message;
    EXPECT_THAT(rig->registration(), HasSubstr(ToString(1_MiB)));
  }
}

TEST(Percentile, IsTheNearestRank) {
  std::vector<double> values;
  for (int i = 200; i >= 1; --i) values.push_back(i);
  EXPECT_EQ(Percentile(values, 0.99), 198);
  EXPECT_EQ(Percentile(values, 0.5), 100);
  EXPECT_EQ(Percentile({7, 5}, 0.99), 7);
  EXPECT_EQ(Percentile({5}, 0.5), 5);
}

TEST(ProbeFileErrors, AMissingFolderIsNotFound) {
  const Result<ProbeFile> file = ProbeFile::Create("no/such/folder", 1_MiB, 1_MiB);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(file.error().message, HasSubstr("no/such/folder"));
}

}  // namespace
}  // namespace penstock::aio
