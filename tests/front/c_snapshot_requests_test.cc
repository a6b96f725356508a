// Requests for snapshots of a run of the C interface (docs/run_format.md, "Snapshots"); also
// tests/e2e/package_snapshots_test.py.
#include <fcntl.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/file_lock.h"
#include "base/unique_fd.h"
#include "tests/front/c_rows.h"

namespace penstock::front {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CSnapshotRequestsTest : public ::testing::Test {
 protected:
  /// Asks for a snapshot, as long as what is returned lives.
  UniqueFd Ask(const std::string& name) const {
    fs::create_directories(run_ + "/snapshots");
    UniqueFd request(::open(PathOf(name).c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
    EXPECT_TRUE(TryLockFile(request.get(), /*exclusive=*/true, name).ok());
    return request;
  }
  std::string PathOf(const std::string& name) const {
    return run_ + "/snapshots/." + name + ".request";
  }

  const TempFolder temp_;
  const std::string run_ = fs::canonical(temp_.Path()) / "run";
};

TEST_F(CSnapshotRequestsTest, ASnapshotIsCompleteBeforeTheNextCommitIsMade) {
  RowTraining training({{"run", run_}}, kHomes[1], "");
  training.Step(1);
  training.Commit();
  const UniqueFd request = Ask("asked");
  training.Step(1);
  training.Commit();
  EXPECT_FALSE(fs::exists(PathOf("asked")));
  EXPECT_TRUE(fs::exists(run_ + "/snapshots/asked/run.json"));
  EXPECT_EQ(LinesOf(run_ + "/snapshots/asked/metrics.jsonl").size(), 1U);
  EXPECT_THAT(training.Notices(), IsEmpty());
}

TEST_F(CSnapshotRequestsTest, ACopyEndsBeforeItsEngineDoes) {
  {
    RowTraining training({{"run", run_}}, kHomes[1], "");
    training.Step(1);
    training.Commit();
    const UniqueFd request = Ask("asked");
    training.Step(1);
  }
  EXPECT_FALSE(fs::exists(PathOf("asked")));
  EXPECT_TRUE(fs::exists(run_ + "/snapshots/asked/run.json"));
}

TEST_F(CSnapshotRequestsTest, ASnapshotThatFailsIsSaidToTheCallerWhoseTrainingGoesOn) {
  RowTraining training({{"run", run_}}, kHomes[1], "");
  training.Step(1);
  training.Commit();
  const UniqueFd request = Ask("asked");
  fs::create_directory(run_ + "/snapshots/.asked.unfinished");
  std::ofstream(run_ + "/snapshots/.asked.unfinished/mine") << "mine";
  training.Step(1);
  training.Commit();  // the copy has ended
  EXPECT_EQ(training.Step(1).notices, 1U);
  EXPECT_THAT(training.Notices(), ElementsAre(AllOf(HasSubstr("snapshot asked failed: "),
                                                    HasSubstr("was not made by this run"))));
  EXPECT_FALSE(fs::exists(PathOf("asked")));
}

TEST_F(CSnapshotRequestsTest, WhatNobodyWaitsForIsNoRequest) {
  RowTraining training({{"run", run_}}, kHomes[1], "");
  training.Step(1);
  training.Commit();
  { const UniqueFd request = Ask("asked"); }
  training.Step(1);
  training.Commit();
  EXPECT_TRUE(fs::exists(PathOf("asked")));
  EXPECT_FALSE(fs::exists(run_ + "/snapshots/asked"));
}

}  // namespace
}  // namespace penstock::front
