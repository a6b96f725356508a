#include "base/unshared_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <utility>

#include "base/file_lock.h"
#include "tests/temp_folder.h"

namespace penstock {
namespace {

/// A child of a fork that lives until its pipe is closed, and ends with what `function` returns.
template <typename Function>
class Child {
 public:
  explicit Child(Function function) {
    EXPECT_EQ(::pipe2(begun_, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(ends_, O_CLOEXEC), 0);
    pid_ = ::fork();
    char byte = 0;
    if (pid_ == 0) {
      static_cast<void>(::write(begun_[1], &byte, 1));
      const int code = function();
      ::close(ends_[1]);
      static_cast<void>(::read(ends_[0], &byte, 1));
      ::_exit(code);
    }
    EXPECT_EQ(::read(begun_[0], &byte, 1), 1);
  }
  int Join() {
    for (const int fd : {begun_[0], begun_[1], ends_[0], ends_[1]}) ::close(fd);
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    return WEXITSTATUS(status);
  }

 private:
  int begun_[2] = {-1, -1};
  int ends_[2] = {-1, -1};
  pid_t pid_ = 0;
};

TEST(UnsharedFdTest, ALockEndsWithItsProcessAlthoughAForkedChildLives) {
  const TempFolder folder;
  const std::string path = folder.Write("file", "");
  UnsharedFd locked(UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC)));
  ASSERT_TRUE(LockFile(locked.get(), true, path).ok());
  Child child([&] {
    const UnsharedFd moved = std::move(locked);  // ends in the child as it would elsewhere
    return 7;
  });
  const UniqueFd other(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(TryLockFile(other.get(), true, path).ok());
  locked = UnsharedFd();
  EXPECT_TRUE(TryLockFile(other.get(), true, path).ok());
  EXPECT_EQ(child.Join(), 7);
}

TEST(UnsharedFdTest, AChildWritesNothingIntoTheFile) {
  const TempFolder folder;
  const std::string path = folder.Write("file", "");
  const UnsharedFd file(UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC)));
  Child child([&] { return ::write(file.get(), "x", 1) == 1 ? 0 : 1; });
  EXPECT_EQ(child.Join(), 0);
  EXPECT_EQ(std::filesystem::file_size(path), 0U);
}

}  // namespace
}  // namespace penstock
