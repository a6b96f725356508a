#include "base/file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(FileSystem, MemoryAndServersAreKnownByTheirType) {
  EXPECT_EQ(FileSystemOfType(0x01021994).medium, Medium::kMemory);
  EXPECT_EQ(FileSystemOfType(0x858458f6).name, "ramfs");
  EXPECT_EQ(FileSystemOfType(0x6969).medium, Medium::kNetwork);
  EXPECT_EQ(FileSystemOfType(0x6969).name, "nfs");
  EXPECT_EQ(FileSystemOfType(0xff534d42).name, "cifs");
  EXPECT_EQ(FileSystemOfType(0x65735546).name, "fuse");
}

TEST(FileSystem, ThoseOfDrivesAreNothingToSpeakOf) {
  for (const uint64_t type : {0xef53, 0x58465342}) {  // ext4, XFS
    EXPECT_EQ(FileSystemOfType(type).medium, Medium::kDrive);
    EXPECT_EQ(FileSystemOfType(type).name, "");
  }
}

TEST(FileSystem, SharedMemoryIsMemory) {
  const Result<FileSystem> found = ReadFileSystem("/dev/shm");
  if (!found.ok()) GTEST_SKIP() << found.error().message;
  EXPECT_EQ(found->medium, Medium::kMemory);
  EXPECT_THAT(FileSystemNotice("nvme_path /dev/shm", "/dev/shm"),
              AllOf(HasSubstr("nvme_path /dev/shm is on " + found->name), HasSubstr("memory")));
}

TEST(FileSystem, FoldersOfOneFileSystemShareItsSpace) {
  const Result<Bytes> free = FreeSpace("/tmp");
  ASSERT_TRUE(free.ok()) << free.error().message;
  const std::optional<Bytes> once = FreeSpaceTogether({"/tmp"});
  const std::optional<Bytes> twice = FreeSpaceTogether({"/tmp", "/tmp/."});
  ASSERT_TRUE(once && twice);
  // Others may use it meanwhile.
  EXPECT_LT(*twice, Bytes{free->value / 2 * 3});
  EXPECT_LT(*once, Bytes{free->value / 2 * 3});
  EXPECT_FALSE(FreeSpaceTogether({"/tmp", "/nowhere/at/all"}));
  EXPECT_FALSE(FreeSpaceTogether({}));
}

TEST(FileSystem, WhatIsNotThereIsAnErrorAndNoNotice) {
  EXPECT_FALSE(ReadFileSystem("/nowhere/at/all").ok());
  EXPECT_EQ(FileSystemNotice("nvme_path", "/nowhere/at/all"), "");
}

}  // namespace
}  // namespace penstock
