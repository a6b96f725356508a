// The measuring parts of a tuning, on small files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "train/tune_file.h"
#include "train/tune_loop.h"
#include "train/tune_measure.h"
#include "train/tune_probe.h"

namespace penstock::train {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

const StopRequested kNever = [] { return false; };

/// A folder of its own below the working folder, which is on a drive with O_DIRECT.
class TuneMeasure : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::absolute(std::string("tune_") +
                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directory(folder_);
    Result<TuneFile> file = TuneFile::Create(folder_, 4_MiB, 1_MiB);
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
  std::optional<TuneFile> file_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> out_{std::tmpfile(), std::fclose};
  StatusLine quiet_{out_.get(), false};
};

/// An engine that passes requests on and watches them.
class WatchedEngine final : public aio::Engine {
 public:
  explicit WatchedEngine(aio::EngineOptions options) : base_(aio::CreateEngine(options).value()) {}

  aio::Ticket Submit(aio::Request request) override {
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
    return base_->Submit(std::move(request));
  }
  void Drain() override { base_->Drain(); }
  void Cancel() override { base_->Cancel(); }
  Result<std::string> RegisterBuffers(std::span<const std::span<std::byte>> memory) override {
    return base_->RegisterBuffers(memory);
  }
  Result<aio::FileRegistration> RegisterFile(const aio::File& file) override {
    return base_->RegisterFile(file);
  }
  aio::EngineStats stats() const override { return base_->stats(); }
  const std::string& name() const override { return base_->name(); }

  std::mutex mutex;
  int in_flight = 0;
  int most = 0;
  int odd_sizes = 0;
  std::vector<std::pair<aio::Operation, uint64_t>> submitted;

 private:
  std::unique_ptr<aio::Engine> base_;
};

aio::EngineOptions Threads() {
  return {.kind = aio::EngineKind::kThreads, .queue_depth = 64, .thread_count = 4};
}

ClosedLoop::Options LoopOf(aio::Engine* engine, TuneFile* file, Direction direction, int depth,
                           Bytes bytes) {
  return {.engine = engine,
          .file = file,
          .block_size = 64_KiB,
          .queue_depth = depth,
          .direction = direction,
          .limit = {.bytes = bytes, .time = std::chrono::hours(1)},
          .stop = kNever};
}

TEST_F(TuneMeasure, FileHasNoNameAndAllOfItIsReserved) {
  EXPECT_TRUE(fs::is_empty(folder_));
  EXPECT_EQ(*file_->file().Size(), 4_MiB);
}

TEST_F(TuneMeasure, FillWritesEveryByteWithWhatCannotBeCompressed) {
  const auto engine = aio::CreateEngine(Threads()).value();
  ASSERT_TRUE(file_->Fill(*engine, kNever).ok());
  EXPECT_EQ(file_->written, 4_MiB);
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

TEST_F(TuneMeasure, FillThatIsInterruptedIsCancelled) {
  const auto engine = aio::CreateEngine(Threads()).value();
  const Status status = file_->Fill(*engine, [] { return true; });
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
}

TEST_F(TuneMeasure, LoopKeepsExactlyTheDepthInFlight) {
  WatchedEngine engine(Threads());
  const auto outcome = ClosedLoop(LoopOf(&engine, &*file_, Direction::kWrite, 8, 16_MiB)).Run();
  ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  EXPECT_EQ(outcome->moved, 16_MiB);
  EXPECT_EQ(outcome->latencies_us.size(), 256U);
  EXPECT_EQ(engine.most, 8);
  EXPECT_EQ(engine.odd_sizes, 0);
  EXPECT_EQ(engine.in_flight, 0);
}

TEST_F(TuneMeasure, LoopGoesThroughTheFileInOrderAndGoesOnWhereItEnded) {
  WatchedEngine engine(Threads());
  ASSERT_TRUE(ClosedLoop(LoopOf(&engine, &*file_, Direction::kRead, 1, 3_MiB)).Run().ok());
  ASSERT_TRUE(ClosedLoop(LoopOf(&engine, &*file_, Direction::kRead, 1, 3_MiB)).Run().ok());
  ASSERT_EQ(engine.submitted.size(), 96U);
  for (size_t i = 0; i < 96; ++i) {
    EXPECT_EQ(engine.submitted[i].second, i % 64 * 64 * 1024) << i;
  }
  EXPECT_EQ(file_->written, 0_B);
}

TEST_F(TuneMeasure, BothDirectionsMoveEqualBytesInHalvesThatDoNotMeet) {
  WatchedEngine engine(Threads());
  ASSERT_TRUE(ClosedLoop(LoopOf(&engine, &*file_, Direction::kBoth, 4, 8_MiB)).Run().ok());
  size_t reads = 0;
  for (const auto& [operation, offset] : engine.submitted) {
    const bool read = operation == aio::Operation::kRead;
    reads += read ? 1 : 0;
    EXPECT_EQ(offset < 2 * 1024 * 1024, read);
  }
  EXPECT_EQ(reads * 2, engine.submitted.size());
  EXPECT_EQ(file_->written, 4_MiB);
}

TEST_F(TuneMeasure, LoopEndsByTimeToo) {
  const auto engine = aio::CreateEngine(Threads()).value();
  ClosedLoop::Options options = LoopOf(engine.get(), &*file_, Direction::kRead, 2, 1024_GiB);
  options.limit.time = std::chrono::milliseconds(1);
  EXPECT_TRUE(ClosedLoop(std::move(options)).Run().ok());
}

TEST_F(TuneMeasure, LoopEndsWithTheErrorOfARequest) {
  aio::EngineOptions options = Threads();
  options.faults = aio::FaultPlan{.faults = {{.first_block = 5}}};
  const auto engine = aio::CreateEngine(options).value();
  const auto outcome =
      ClosedLoop(LoopOf(engine.get(), &*file_, Direction::kWrite, 4, 1024_GiB)).Run();
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, ErrorCode::kIo);
}

TEST(BlockWalk, StartsOverBeforeABlockThatDoesNotFit) {
  BlockWalk walk(FileOffset{4096}, 10_KiB, 4_KiB, 12_KiB);
  EXPECT_EQ(walk.Next().value, 8192U);
  EXPECT_EQ(walk.Next().value, 4096U);
  EXPECT_EQ(walk.Next().value, 8192U);
}

TEST_F(TuneMeasure, ProbeCountsBytesAndTimes) {
  Result<ProbeRig> rig = ProbeRig::Create(MakePoint(aio::EngineKind::kThreads, 64_KiB, 4), &*file_);
  ASSERT_TRUE(rig.ok()) << rig.error().message;
  const Result<Probe> probe =
      rig->Measure(Direction::kWrite, {.bytes = 4_MiB, .time = std::chrono::hours(1)}, kNever);
  ASSERT_TRUE(probe.ok()) << probe.error().message;
  EXPECT_GT(probe->gbps, 0);
  EXPECT_GT(probe->cpu_s_per_gb, 0);
  EXPECT_LE(probe->median_us, probe->p99_us);
  EXPECT_EQ(file_->written, 4_MiB);
}

MeasureOptions Options(int rounds) {
  return {.rounds = rounds,
          .limit = {.bytes = 1_MiB, .time = std::chrono::hours(1)},
          .deadline = std::chrono::steady_clock::now() + std::chrono::hours(1),
          .stop = kNever,
          .what = "grid"};
}

TEST_F(TuneMeasure, RoundsMeasureEachConfigurationInEachDirection) {
  const std::vector<TunePoint> points = {MakePoint(aio::EngineKind::kThreads, 64_KiB, 1),
                                         MakePoint(aio::EngineKind::kThreads, 64_KiB, 4)};
  const auto measured = MeasurePoints(points, &*file_, Options(3), &quiet_);
  ASSERT_TRUE(measured.ok()) << measured.error().message;
  ASSERT_EQ(measured->size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ((*measured)[i].point, points[i]);
    for (const auto& probes : (*measured)[i].probes) EXPECT_EQ(probes.size(), 3U);
  }
}

TEST_F(TuneMeasure, NothingBeginsAfterTheDeadline) {
  MeasureOptions options = Options(3);
  options.deadline = std::chrono::steady_clock::now();
  const auto measured =
      MeasurePoints({MakePoint(aio::EngineKind::kThreads, 64_KiB, 1)}, &*file_, options, &quiet_);
  ASSERT_TRUE(measured.ok()) << measured.error().message;
  EXPECT_TRUE((*measured)[0].probes[0].empty());
}

TEST_F(TuneMeasure, AnInterruptEndsTheRounds) {
  std::atomic<int> calls = 0;
  MeasureOptions options = Options(1000000);
  options.stop = [&calls] { return ++calls > 100; };
  const auto measured =
      MeasurePoints({MakePoint(aio::EngineKind::kThreads, 64_KiB, 1)}, &*file_, options, &quiet_);
  ASSERT_FALSE(measured.ok());
  EXPECT_EQ(measured.error().code, ErrorCode::kCancelled);
}

TEST(TuneFileErrors, AMissingFolderIsNotFound) {
  const Result<TuneFile> file = TuneFile::Create("no/such/folder", 1_MiB, 1_MiB);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(file.error().message, HasSubstr("no/such/folder"));
}

}  // namespace
}  // namespace penstock::train
