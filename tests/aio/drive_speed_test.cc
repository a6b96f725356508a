#include "aio/drive_speed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

namespace penstock::aio {
namespace {

constexpr Bytes kHeader = 8_KiB;

class DriveSpeedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    // Below the working folder, which is on a drive with O_DIRECT.
    folder_ =
        std::filesystem::absolute(std::string(info->name()) + "." + std::to_string(::getpid()));
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// A file in which `size` bytes follow a header.
  File Open(Bytes size) {
    auto file = File::Open(folder_ / "file", {.create = true, .writable = true, .direct = false});
    EXPECT_TRUE(file.ok() && file->Allocate(kHeader + size).ok());
    return std::move(file).value();
  }

  std::filesystem::path folder_;
};

TEST_F(DriveSpeedTest, ReadsWhatItWroteAndNoMoreThanItWasGiven) {
  const auto engine = std::move(CreateEngine({.kind = EngineKind::kThreads})).value();
  const Bytes size = 9_MiB + 4_KiB;  // not a whole number of pieces
  const File file = Open(size);
  const auto speed = MeasureFile(*engine, file, size);
  ASSERT_TRUE(speed.ok()) << speed.error().message;
  EXPECT_GT(*speed, 0);
  const EngineStats stats = engine->stats();
  EXPECT_GT(stats.write_bytes, 0);
  EXPECT_LE(stats.write_bytes, size.value);
  EXPECT_LE(stats.read_bytes, stats.write_bytes);
  EXPECT_EQ(*file.Size(), kHeader + size);
}

TEST_F(DriveSpeedTest, AFileOfLessThanABlockIsMeasuredToo) {
  const auto engine = std::move(CreateEngine({.kind = EngineKind::kThreads})).value();
  const File file = Open(12_KiB);
  const auto speed = MeasureFile(*engine, file, 12_KiB);
  ASSERT_TRUE(speed.ok()) << speed.error().message;
  EXPECT_EQ(engine->stats().write_bytes, 12 << 10);
  EXPECT_EQ(engine->stats().read_bytes, 12 << 10);
}

TEST_F(DriveSpeedTest, AnErrorOfTheDriveIsReported) {
  for (const Operation operation : {Operation::kRead, Operation::kWrite}) {
    const auto engine =
        std::move(CreateEngine({.kind = EngineKind::kThreads,
                                .faults = FaultPlan{.faults = {{.operation = operation}}}}))
            .value();
    auto file = Open(8_MiB);
    const auto speed = MeasureFile(*engine, file, 8_MiB);
    ASSERT_FALSE(speed.ok());
    EXPECT_NE(speed.error().message.find(file.path()), std::string::npos);
    std::filesystem::remove(file.path());
  }
}

TEST_F(DriveSpeedTest, WhatStandsBeforeTheMeasuredBytesStays) {
  const auto engine = std::move(CreateEngine({.kind = EngineKind::kThreads})).value();
  const File file = Open(12_KiB);
  const std::string header(kHeader.value, 'h');
  ASSERT_EQ(::pwrite(file.fd(), header.data(), header.size(), 0),
            static_cast<ssize_t>(header.size()));
  ASSERT_TRUE(MeasureFile(*engine, file, 12_KiB).ok());
  std::string found(header.size(), '\0');
  ASSERT_EQ(::pread(file.fd(), found.data(), found.size(), 0), static_cast<ssize_t>(header.size()));
  EXPECT_EQ(found, header);
}

TEST_F(DriveSpeedTest, AFolderIsMeasuredInAllDirectionsAndNothingIsLeft) {
  const auto speed = MeasureDrive(folder_, [] { return false; });
  if (!speed.ok() && speed.error().code == ErrorCode::kUnavailable) {
    GTEST_SKIP() << speed.error().message;
  }
  ASSERT_TRUE(speed.ok()) << speed.error().message;
  EXPECT_GT(speed->read_gbps, 0);
  EXPECT_GT(speed->write_gbps, 0);
  EXPECT_GT(speed->both_gbps, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(DriveSpeedTest, AMeasurementThatIsStoppedLeavesNothing) {
  const auto speed = MeasureDrive(folder_, [] { return true; });
  ASSERT_FALSE(speed.ok());
  if (speed.error().code != ErrorCode::kCancelled) GTEST_SKIP() << speed.error().message;
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

}  // namespace
}  // namespace penstock::aio
