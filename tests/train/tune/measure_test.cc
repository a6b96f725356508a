// The rounds of a tuning, on small files.
#include "train/tune/measure.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::train {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

const aio::StopRequested kNever = [] { return false; };

/// A folder of its own below the working folder, which is on a drive with O_DIRECT.
class TuneMeasure : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::absolute(std::string("tune_") +
                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directory(folder_);
    Result<aio::ProbeFile> file = aio::ProbeFile::Create(folder_, 4_MiB, 1_MiB);
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
  std::optional<aio::ProbeFile> file_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> out_{std::tmpfile(), std::fclose};
  StatusLine quiet_{out_.get(), false};
};

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
    EXPECT_NE((*measured)[i].registration, "");
  }
}

TEST_F(TuneMeasure, ATerminalShowsABarThatIsFullAtTheEnd) {
  MeasureOptions options = Options(4);
  options.terminal = true;
  StatusLine line(out_.get(), true);
  ASSERT_TRUE(
      MeasurePoints({MakePoint(aio::EngineKind::kThreads, 64_KiB, 1)}, &*file_, options, &line)
          .ok());
  std::rewind(out_.get());
  std::string text(1000, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), out_.get()));
  EXPECT_THAT(text, HasSubstr("[##------] grid 1/4  "));
  EXPECT_THAT(text, HasSubstr("[########] grid 4/4  0:00 left  threads 64 KiB x 1: "));
}

TEST_F(TuneMeasure, NothingBeginsAfterTheDeadline) {
  MeasureOptions options = Options(3);
  options.deadline = std::chrono::steady_clock::now();
  const auto measured =
      MeasurePoints({MakePoint(aio::EngineKind::kThreads, 64_KiB, 1)}, &*file_, options, &quiet_);
  ASSERT_TRUE(measured.ok()) << measured.error().message;
  EXPECT_TRUE((*measured)[0].probes[0].empty());
}

TEST_F(TuneMeasure, AProbeEndsAtTheDeadlineAndItsTurnDoesNotCount) {
  MeasureOptions options = Options(3);
  options.limit = {.bytes = 1024_GiB, .time = std::chrono::hours(24)};
  options.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  const auto measured =
      MeasurePoints({MakePoint(aio::EngineKind::kThreads, 64_KiB, 1)}, &*file_, options, &quiet_);
  ASSERT_TRUE(measured.ok()) << measured.error().message;
  for (const auto& probes : (*measured)[0].probes) EXPECT_TRUE(probes.empty());
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

}  // namespace
}  // namespace penstock::train
