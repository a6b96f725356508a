#include "run/run_lock.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

/// How many descriptors of this process are of a file.
size_t Opened(const std::string& path) {
  size_t count = 0;
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    count += fs::read_symlink(entry.path(), gone) == path ? 1 : 0;
  }
  return count;
}

/// As a user who may not write in folders of root's.
class AsAnother {
 public:
  AsAnother() : root_(::geteuid() == 0 && ::seteuid(65534) == 0) {}
  ~AsAnother() {
    if (root_) {
      EXPECT_EQ(::seteuid(0), 0);
    }
  }
  AsAnother(const AsAnother&) = delete;
  AsAnother& operator=(const AsAnother&) = delete;

 private:
  bool root_;
};

TEST(RunLockTest, AfterAWaitForALockWhoseFileWasRemovedThatOfANewFileIsTaken) {
  const TempFolder base;
  const std::string path = fs::canonical(base.Path()) / kLockName;
  std::optional<RunLock> first = RunLock::Take(base.Open()).value();
  std::optional<Result<RunLock>> second;
  std::thread waits([&] { second = RunLock::Take(base.Open()); });
  while (Opened(path) < 2) std::this_thread::yield();
  fs::remove(path);
  first.reset();
  waits.join();
  ASSERT_TRUE(second->ok()) << second->error().message;
  EXPECT_TRUE(base.Has(kLockName)) << "a lock of a removed file excludes no process";
  EXPECT_TRUE(FailsWith(RunLock::TryTake(base.Open()), ErrorCode::kUnavailable, {"in use"}));
}

TEST(RunLockTest, AFolderThatWasRenamedMeanwhileIsNotTheOneWhoseLockWasAskedFor) {
  const TempFolder base;
  fs::create_directory(base.Path(".copy.unfinished"));
  const Folder around = base.Open();
  const Folder unfinished = base.Open(".copy.unfinished");
  EXPECT_TRUE(RunLock::TryTakeAt(around, ".copy.unfinished", unfinished).ok());
  fs::rename(base.Path(".copy.unfinished"), base.Path("copy"));
  EXPECT_TRUE(FailsWith(RunLock::TryTakeAt(around, ".copy.unfinished", unfinished),
                        ErrorCode::kUnavailable, {".copy.unfinished", "renamed or removed"}));
  EXPECT_TRUE(RunLock::TryTake(base.Open("copy")).ok()) << "the lock was let go";
}

TEST(RunLockTest, AChildOfAForkWhileALockIsWaitedForDoesNotHaveItsFile) {
  const TempFolder base;
  const std::string path = fs::canonical(base.Path()) / kLockName;
  std::optional<RunLock> first = RunLock::Take(base.Open()).value();
  std::thread waits([&] { EXPECT_TRUE(RunLock::Take(base.Open()).ok()); });
  while (Opened(path) < 2) std::this_thread::yield();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(static_cast<int>(Opened(path)));
  first.reset();
  waits.join();
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(RunLockTest, AReaderWithoutWriteAccessSharesTheExistingLockAndMakesNone) {
  const TempFolder base;
  ASSERT_EQ(::chmod(base.Path().c_str(), 0555), 0);
  {
    const AsAnother reader;
    const Result<RunLock> none = RunLock::TakeToRead(base.Open());
    EXPECT_TRUE(none.ok()) << none.error().message;
    EXPECT_FALSE(base.Has(kLockName));
  }
  ASSERT_EQ(::chmod(base.Path().c_str(), 0755), 0);
  base.Write(kLockName, "");
  ASSERT_EQ(::chmod(base.Path(kLockName).c_str(), 0444), 0);
  std::optional<RunLock> shared;
  {
    const AsAnother reader;
    Result<RunLock> taken = RunLock::TakeToRead(base.Open());
    ASSERT_TRUE(taken.ok()) << taken.error().message;
    shared = *std::move(taken);
  }
  ASSERT_EQ(::chmod(base.Path(kLockName).c_str(), 0644), 0);
  EXPECT_FALSE(RunLock::TryTake(base.Open()).ok());
  shared.reset();
  EXPECT_TRUE(RunLock::TryTake(base.Open()).ok());
}

TEST(RunLockTest, AFolderGoesWithItsLock) {
  const TempFolder base;
  fs::create_directory(base.Path("run"));
  RunLock lock = RunLock::Take(base.Open("run")).value();
  EXPECT_FALSE(lock.RemoveFolder(base.Open(), "run").ok()) << "the file of the lock is in it";
  EXPECT_TRUE(RunLock::TryTake(base.Open("run")).ok()) << "the lock has ended";
  fs::remove(base.Path("run") + "/" + kLockName);
  EXPECT_TRUE(lock.RemoveFolder(base.Open(), "run").ok());
  EXPECT_FALSE(base.Has("run"));
}

}  // namespace
}  // namespace penstock::train
