#include "base/file_lock.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/temp_folder.h"

namespace penstock {
namespace {

class FileLockTest : public ::testing::Test {
 protected:
  UniqueFd Open(int flags) const { return UniqueFd(::open(path_.c_str(), flags | O_CLOEXEC)); }

  const TempFolder folder_;
  const std::string path_ = folder_.Write("file", "");
};

TEST_F(FileLockTest, AnExclusiveLockKeepsAllOthersOutUntilItIsGivenUp) {
  const UniqueFd writer = Open(O_RDWR);
  const UniqueFd other = Open(O_RDWR);
  const UniqueFd reader = Open(O_RDONLY);
  ASSERT_TRUE(LockFile(writer.get(), true, path_).ok());
  EXPECT_TRUE(FailsWith(TryLockFile(other.get(), true, path_), ErrorCode::kUnavailable,
                        {path_, "is in use by another process"}));
  EXPECT_TRUE(FailsWith(TryLockFile(reader.get(), false, path_), ErrorCode::kUnavailable, {path_}));
  UnlockFile(writer.get());
  EXPECT_TRUE(TryLockFile(reader.get(), false, path_).ok());
  EXPECT_FALSE(TryLockFile(other.get(), true, path_).ok());
}

TEST_F(FileLockTest, ReadersShareALock) {
  const UniqueFd one = Open(O_RDONLY);
  const UniqueFd two = Open(O_RDONLY);
  EXPECT_TRUE(LockFile(one.get(), false, path_).ok());
  EXPECT_TRUE(LockFile(two.get(), false, path_).ok());
}

// As NFS would refuse or ignore them.
TEST_F(FileLockTest, WhatNfsDoesNotLockIsABugEverywhere) {
  const UniqueFd read = Open(O_RDONLY);
  const UniqueFd write = Open(O_WRONLY);
  const Folder folder = folder_.Open();
  EXPECT_DEATH(static_cast<void>(LockFile(read.get(), true, path_)), "not open for writing");
  EXPECT_DEATH(static_cast<void>(LockFile(write.get(), false, path_)), "not open for reading");
  EXPECT_DEATH(static_cast<void>(TryLockFile(folder.fd(), false, path_)), "no regular file");
}

}  // namespace
}  // namespace penstock
