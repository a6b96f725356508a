#include "train/doctor/drive_checks.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/temp_folder.h"
#include "tests/train/doctor/support.h"
#include "train/doctor/speed_check.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

/// A folder to train in, and a machine that is described in another one.
class DriveChecksTest : public testing::Test {
 protected:
  /// The machine has this disk below the folder's file system, with a queue.
  void WriteDisk(const std::string& disk, const std::string& parent = "pci0000:00/0000:01:00.0") {
    const std::string device = "sys/devices/" + parent + "/" + disk;
    root_.Write(device + "/queue/max_sectors_kb", "1280\n");
    root_.Write(device + "/queue/max_segments", "127\n");
    root_.Write(device + "/queue/rotational", "0\n");
    root_.Write(device + "/" + disk + "p2/partition", "2\n");
    struct stat info {};
    ASSERT_EQ(::stat(folder_.Path().c_str(), &info), 0);
    Link(device + "/" + disk + "p2",
         fmt::format("sys/dev/block/{}:{}", major(info.st_dev), minor(info.st_dev)));
    Link(device, "sys/class/block/" + disk);
    queue_ = device + "/queue/";
  }
  void Link(const std::string& target, const std::string& name) const {
    fs::create_directories(fs::path(root_.Path(name)).parent_path());
    fs::create_symlink(root_.Path(target), root_.Path(name));
  }
  void WriteMount(const std::string& type, const std::string& source = "/dev/x") const {
    root_.Write("proc/self/mountinfo", fmt::format("22 1 0:1 / / rw - {} {} rw\n", type, source));
  }
  DriveFacts Read() const { return ReadDriveFacts(folder_.Path(), files_); }

  const TempFolder root_;
  const TempFolder folder_;
  const MachineFiles files_{root_.Path()};
  std::string queue_;
};

TEST_F(DriveChecksTest, APartitionOfAnNvmeDriveIsOne) {
  WriteMount("ext4");
  WriteDisk("nvme0n1");
  const DriveFacts facts = Read();
  EXPECT_THAT(facts.disks, ElementsAre("nvme0n1"));
  EXPECT_THAT(DriveKindCheck(facts), CheckIs(CheckState::kOk, "nvme (nvme0n1)"));
  EXPECT_THAT(QueueCheck(facts, files_),
              CheckIs(CheckState::kOk, "max_sectors_kb 1280, max_segments 127, rotational 0"));
  EXPECT_THAT(FolderCheck(facts), CheckIs(CheckState::kOk, folder_.Path()));
}

TEST_F(DriveChecksTest, ADiskThatRotatesIsAWarning) {
  WriteMount("xfs");
  WriteDisk("sda");
  root_.Write(queue_ + "rotational", "1\n");
  EXPECT_THAT(DriveKindCheck(Read()), CheckIs(CheckState::kWarn, "disk (sda)"));
  root_.Write(queue_ + "rotational", "0\n");
  EXPECT_THAT(DriveKindCheck(Read()), CheckIs(CheckState::kOk, "ssd (sda)"));
}

TEST_F(DriveChecksTest, MemoryNetworksAndLayersAreWarningsWithWhatToDo) {
  WriteMount("tmpfs");
  EXPECT_THAT(DriveKindCheck(Read()),
              CheckIs(CheckState::kWarn, "memory (tmpfs); the state takes"));
  for (const char* type : {"nfs4", "cifs", "fuse.sshfs", "9p", "lustre"}) {
    WriteMount(type);
    EXPECT_THAT(DriveKindCheck(Read()), CheckIs(CheckState::kWarn, fmt::format("({})", type)));
  }
  WriteMount("overlay");
  EXPECT_THAT(DriveKindCheck(Read()), CheckIs(CheckState::kWarn, "mount a volume"));
}

TEST_F(DriveChecksTest, AFileSystemWithADeviceOfItsOwnNamesItsDriveInTheMount) {
  WriteMount("btrfs", "/dev/nvme1n1p3");
  root_.Write("sys/devices/pci/nvme1n1/nvme1n1p3/partition", "3\n");
  Link("sys/devices/pci/nvme1n1/nvme1n1p3", "sys/class/block/nvme1n1p3");
  const DriveFacts facts = Read();
  EXPECT_THAT(facts.disks, ElementsAre("nvme1n1"));
  EXPECT_THAT(FileSystemCheck(facts), CheckIs(CheckState::kWarn, "chattr +C"));
}

TEST_F(DriveChecksTest, TheInnermostMountCountsAndItsNameMayHaveSpaces) {
  root_.Write("proc/self/mountinfo",
              "1 0 0:1 / / rw - ext4 /dev/a rw\n"
              "garbage\n"
              "2 1 0:2 / /mnt/my\\040drive rw,noatime - xfs /dev/b rw,discard\n"
              "3 1 0:3 / /mnt/my rw - tmpfs none rw\n"
              "4 1 0:4 / /mnt/my rw - nfs server:/x rw\n");
  EXPECT_EQ(MountOf("/mnt/my drive/a", files_)->source, "/dev/b");
  EXPECT_EQ(MountOf("/mnt/my drive/a", files_)->options, "rw,noatime,rw,discard");
  EXPECT_EQ(MountOf("/mnt/my", files_)->type, "nfs");
  EXPECT_EQ(MountOf("/mnt/mine", files_)->type, "ext4");
}

TEST_F(DriveChecksTest, WithoutAnyFileOfTheMachineLinesAreUnknown) {
  const DriveFacts facts = Read();
  EXPECT_EQ(FileSystemCheck(facts).state, CheckState::kUnknown);
  EXPECT_EQ(IommuCheck(facts, files_).state, CheckState::kUnknown);
  EXPECT_NE(DriveKindCheck(facts).state, CheckState::kFail);
  EXPECT_NE(QueueCheck(facts, files_).state, CheckState::kFail);
}

TEST_F(DriveChecksTest, SmallRequestsAndFewSegmentsAreWarnings) {
  WriteMount("ext4");
  WriteDisk("nvme0n1");
  root_.Write(queue_ + "max_sectors_kb", "64\n");
  EXPECT_THAT(QueueCheck(Read(), files_), CheckIs(CheckState::kWarn, "becomes 16 requests"));
  root_.Write(queue_ + "max_sectors_kb", "1280\n");
  root_.Write(queue_ + "max_segments", "16\n");
  EXPECT_THAT(QueueCheck(Read(), files_), CheckIs(CheckState::kWarn, "few pieces of memory"));
  root_.Write(queue_ + "max_segments", "nonsense\n");
  EXPECT_EQ(QueueCheck(Read(), files_).state, CheckState::kOk);
}

TEST_F(DriveChecksTest, TheIommuModeIsThatOfTheDrivesGroup) {
  WriteMount("ext4");
  WriteDisk("nvme0n1");
  fs::create_directories(root_.Path("sys/kernel/iommu_groups"));
  EXPECT_THAT(IommuCheck(Read(), files_), CheckIs(CheckState::kOk, "off"));
  const std::string group = "sys/kernel/iommu_groups/7/";
  root_.Write(group + "type", "DMA-FQ\n");
  Link(group, "sys/devices/pci0000:00/0000:01:00.0/iommu_group");
  EXPECT_THAT(IommuCheck(Read(), files_), CheckIs(CheckState::kOk, "nvme0n1 DMA-FQ"));
  root_.Write(group + "type", "DMA\n");
  EXPECT_THAT(IommuCheck(Read(), files_), CheckIs(CheckState::kWarn, "iommu.strict=0"));
}

TEST_F(DriveChecksTest, FoldersThatCannotTakeAStateFail) {
  EXPECT_THAT(FolderCheck(ReadDriveFacts(folder_.Path("none"), files_)),
              CheckIs(CheckState::kFail, "does not exist"));
  EXPECT_THAT(FolderCheck(ReadDriveFacts(folder_.Write("file", "x"), files_)),
              CheckIs(CheckState::kFail, "is no folder"));
}

TEST_F(DriveChecksTest, ADriveThatIsFullFailsAndOneThatIsNearlyFullIsAWarning) {
  DriveFacts facts;
  facts.space = {.free = 500_GiB, .total = 1000_GiB, .free_inodes = 10, .inodes = 100};
  EXPECT_EQ(SpaceCheck(facts).state, CheckState::kOk);
  facts.space->free = 40_GiB;
  EXPECT_EQ(SpaceCheck(facts).state, CheckState::kWarn);
  facts.space->free = 0_B;
  EXPECT_EQ(SpaceCheck(facts).state, CheckState::kFail);
  facts.space = {.free = 500_GiB, .total = 1000_GiB, .free_inodes = 0, .inodes = 100};
  EXPECT_THAT(SpaceCheck(facts), CheckIs(CheckState::kFail, "0 of 100 inodes"));
  facts.space->inodes = 0;
  EXPECT_THAT(SpaceCheck(facts), CheckIs(CheckState::kOk, "no fixed number of inodes"));
}

TEST(SpeedCheckTest, BelowHalfAGigabyteASecondItMayBeNoNvmeDrive) {
  const auto check = [](double write) {
    return SpeedCheck(aio::DriveSpeed{.read_gbps = 5, .write_gbps = write, .both_gbps = 2});
  };
  EXPECT_THAT(check(0.49), CheckIs(CheckState::kWarn, "0.49 GB/s written, 5.00 GB/s read"));
  EXPECT_THAT(check(0.49), CheckIs(CheckState::kWarn, "may be no NVMe drive"));
  EXPECT_THAT(check(1), testing::Not(CheckIs(CheckState::kOk, "good")));
  EXPECT_THAT(check(3), CheckIs(CheckState::kOk, "good"));
  EXPECT_THAT(SpeedCheck(MakeError(ErrorCode::kIo, "it broke")),
              CheckIs(CheckState::kWarn, "it broke"));
}

}  // namespace
}  // namespace penstock::train
