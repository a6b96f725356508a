#include "run/held_run.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

TEST(HeldRunTest, ACopyWhoseOwnStateWasNotedOnTheSecondTryIsNoCopyAnyMore) {
  const TempFolder base;
  const std::string root = fs::canonical(base.Path());
  const std::string drive = root + "/drive";
  fs::create_directory(drive);
  const auto request = [&](const std::string& name) {
    return RunRequest{.folder = root + "/" + name, .nvme_paths = {drive}, .program = "test"};
  };
  HeldRun original = HeldRun::Open(request("original")).value();
  const StateFiles theirs = StateFiles::OfOneRank({drive + "/penstock-aa.state"}, "aa");
  ASSERT_TRUE(original.Announce(theirs).ok());
  ASSERT_TRUE(original.NoteCommit(theirs).ok());
  fs::copy(root + "/original", root + "/copy");
  HeldRun copy = HeldRun::Open(request("copy")).value();
  ASSERT_FALSE(copy.OwnFolders().has_value());

  const StateFiles own = StateFiles::OfOneRank({drive + "/penstock-bb.state"}, "bb");
  ASSERT_TRUE(copy.Announce(own).ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::dup(1);
  ::close(next);
  Status noted;
  int failures = -1;
  do {
    ++failures;
    rlimit few = before;
    few.rlim_cur = static_cast<rlim_t>(next + failures);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    noted = copy.NoteCommit(own);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  } while (!noted.ok() && failures < 100);
  EXPECT_TRUE(noted.ok());
  EXPECT_GT(failures, 0);
  EXPECT_TRUE(copy.OwnFolders().has_value());
}

}  // namespace
}  // namespace penstock::train
