#include "offload/drive_speed.h"

#include <gtest/gtest.h>

#include "offload/state_format.h"
#include "tests/offload/support.h"

namespace penstock::offload {
namespace {

class DriveSpeedTest : public FolderTest {
 protected:
  aio::File Open(Bytes size) {
    auto file =
        aio::File::Open(folder_ / "file", {.create = true, .writable = true, .direct = false});
    EXPECT_TRUE(file.ok() && file->Allocate(size).ok());
    return std::move(file).value();
  }
};

TEST_F(DriveSpeedTest, ReadsWhatItWroteAndNoMoreThanItWasGiven) {
  const auto engine = std::move(aio::CreateEngine({.kind = aio::EngineKind::kThreads})).value();
  const Bytes size = 9_MiB + 4_KiB;  // not a whole number of pieces
  const aio::File file = Open(kHeaderBytes + size);
  const auto speed = MeasureSpeed(*engine, file, size);
  ASSERT_TRUE(speed.ok()) << speed.error().message;
  EXPECT_GT(*speed, 0);
  const aio::EngineStats stats = engine->stats();
  EXPECT_GT(stats.write_bytes, 0);
  EXPECT_LE(stats.write_bytes, size.value);
  EXPECT_LE(stats.read_bytes, stats.write_bytes);
  EXPECT_EQ(*file.Size(), kHeaderBytes + size);
}

TEST_F(DriveSpeedTest, AFileOfLessThanABlockIsMeasuredToo) {
  const auto engine = std::move(aio::CreateEngine({.kind = aio::EngineKind::kThreads})).value();
  const aio::File file = Open(kHeaderBytes + 12_KiB);
  const auto speed = MeasureSpeed(*engine, file, 12_KiB);
  ASSERT_TRUE(speed.ok()) << speed.error().message;
  EXPECT_EQ(engine->stats().write_bytes, 12 << 10);
  EXPECT_EQ(engine->stats().read_bytes, 12 << 10);
}

TEST_F(DriveSpeedTest, AnErrorOfTheDriveIsReported) {
  for (const aio::Operation operation : {aio::Operation::kRead, aio::Operation::kWrite}) {
    const auto engine =
        std::move(
            aio::CreateEngine({.kind = aio::EngineKind::kThreads,
                               .faults = aio::FaultPlan{.faults = {{.operation = operation}}}}))
            .value();
    auto file = Open(kHeaderBytes + 8_MiB);
    const auto speed = MeasureSpeed(*engine, file, 8_MiB);
    ASSERT_FALSE(speed.ok());
    EXPECT_NE(speed.error().message.find(file.path()), std::string::npos);
    std::filesystem::remove(file.path());
  }
}

}  // namespace
}  // namespace penstock::offload
