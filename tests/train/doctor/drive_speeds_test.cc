#include "train/doctor/drive_speeds.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace penstock::train {
namespace {

SeenFolder Seen(const std::string& name, uint64_t file_system, std::vector<std::string> disks,
                std::optional<double> gbps) {
  return {.facts = {.folder = name,
                    .file_system = file_system,
                    .kind = DriveKind::kNvme,
                    .disks = std::move(disks)},
          .gbps = gbps};
}

TEST(DriveSpeedsTest, DrivesOfTheFoldersThatAreAskedForCountAndNoOthers) {
  const SeenFolders seen = {Seen("/other", 9, {"nvme9n1"}, 8), Seen("/a", 1, {"nvme0n1"}, 2),
                            Seen("/b", 2, {"nvme1n1"}, 3), Seen("/gone", 0, {}, {})};
  EXPECT_EQ(SpeedTogether(seen, {"/a"}), 2);
  EXPECT_EQ(SpeedTogether(seen, {"/a", "/b"}), 5);
  EXPECT_EQ(SpeedTogether(seen, {}), std::nullopt);
  EXPECT_EQ(SpeedTogether(seen, {"/a", "/never-seen"}), std::nullopt);
}

TEST(DriveSpeedsTest, ADriveThatWasNotMeasuredLeavesTheirSpeedUnknown) {
  const SeenFolders seen = {Seen("/a", 1, {"nvme0n1"}, 2), Seen("/full", 2, {"nvme1n1"}, {}),
                            Seen("/gone", 0, {}, {}), Seen("/gone-as-well", 0, {}, {})};
  EXPECT_EQ(SpeedTogether(seen, {"/a", "/full"}), std::nullopt);
  EXPECT_EQ(SpeedTogether(seen, {"/gone", "/a"}), std::nullopt);
}

TEST(DriveSpeedsTest, AFileSystemAndADiskCountOnce) {
  const SeenFolders seen = {Seen("/a", 1, {"nvme0n1"}, 2),
                            Seen("/a/b", 1, {"nvme0n1"}, {}),
                            Seen("/partition", 2, {"nvme0n1"}, {}),
                            Seen("/net", 3, {}, 1),
                            Seen("/net/b", 3, {}, {}),
                            Seen("/net2", 4, {}, 1)};
  EXPECT_EQ(SpeedTogether(seen, {"/a", "/a/b"}), 2);
  EXPECT_EQ(SpeedTogether(seen, {"/partition", "/a"}), 2);
  EXPECT_EQ(SpeedTogether(seen, {"/partition"}), 2) << "it was measured through another folder";
  EXPECT_EQ(SpeedTogether(seen, {"/net", "/net/b"}), 1);
  EXPECT_EQ(SpeedTogether(seen, {"/net", "/net2"}), 2) << "disks that nobody knows are not one";
}

TEST(DriveSpeedsTest, OfDrivesThatHaveADiskInCommonTheFastestCounts) {
  const SeenFolders seen = {Seen("/one", 1, {"nvme0n1"}, 2), Seen("/two", 2, {"nvme1n1"}, 3),
                            Seen("/stripe", 3, {"nvme0n1", "nvme1n1"}, 5),
                            Seen("/stripe2", 4, {"nvme1n1", "nvme0n1"}, {}),
                            Seen("/three", 5, {"nvme2n1"}, 1)};
  EXPECT_EQ(SpeedTogether(seen, {"/one", "/stripe"}), 5);
  EXPECT_EQ(SpeedTogether(seen, {"/one", "/two", "/stripe", "/three"}), 6);
  EXPECT_EQ(SpeedTogether(seen, {"/stripe2"}), 5) << "the same disks";
  EXPECT_EQ(SpeedTogether(seen, {"/one"}), 2) << "not the stripe's speed";
}

TEST(DriveSpeedsTest, ADriveIsMeasuredOnceAndOnlyWhereThatTellsSomething) {
  const SeenFolders seen = {Seen("/a", 1, {"nvme0n1"}, 2), Seen("/full", 2, {"nvme1n1"}, {})};
  DriveFacts facts = Seen("/b", 7, {"nvme0n1"}, {}).facts;
  EXPECT_EQ(WhyNotMeasured(facts, seen), "it is the drive of /a");
  EXPECT_EQ(WhyNotMeasured(facts, {}), "");
  facts.disks = {"nvme0n1", "nvme1n1"};
  EXPECT_EQ(WhyNotMeasured(facts, seen), "") << "one disk of two is another drive";
  facts.disks = {"nvme1n1"};
  EXPECT_EQ(WhyNotMeasured(facts, seen), "") << "the other folder was full";
  facts.space = {.free = 200_MiB, .total = 1024_GiB};
  EXPECT_EQ(WhyNotMeasured(facts, seen), "less than 256.0 MiB are free");
  facts.kind = DriveKind::kMemory;
  EXPECT_EQ(WhyNotMeasured(facts, seen), "it is memory");
}

}  // namespace
}  // namespace penstock::train
