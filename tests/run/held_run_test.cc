#include "run/held_run.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "run/run_copy.h"
#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

/// Makes files that it may not open, as somebody else than root.
class WhoMayNotReadWhatItMakes {
 public:
  WhoMayNotReadWhatItMakes() : root_(::geteuid() == 0 && ::seteuid(65534) == 0) {}
  ~WhoMayNotReadWhatItMakes() {
    ::umask(mask_);
    if (root_) {
      EXPECT_EQ(::seteuid(0), 0);
    }
  }
  WhoMayNotReadWhatItMakes(const WhoMayNotReadWhatItMakes&) = delete;
  WhoMayNotReadWhatItMakes& operator=(const WhoMayNotReadWhatItMakes&) = delete;

 private:
  mode_t mask_ = ::umask(0777);
  bool root_;
};

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
  fs::permissions(root, fs::perms{0755});
  fs::permissions(root + "/copy", fs::perms{0777});
  {
    const WhoMayNotReadWhatItMakes unable;
    EXPECT_FALSE(copy.NoteCommit(own).ok()) << "run.json cannot be watched";
  }
  EXPECT_TRUE(copy.NoteCommit(own).ok());
  EXPECT_TRUE(copy.OwnFolders().has_value());
}

TEST(RunCopyTest, AFolderWhoseStateLiesElsewhereIsNoUnfinishedCopy) {
  const TempFolder base;
  const std::string root = fs::canonical(base.Path());
  const std::string drive = base.Write("drive/penstock-aa.state", "state");
  fs::create_directory(root + "/.kept.unfinished");
  const Folder folder = Folder::Open(root + "/.kept.unfinished").value();
  RunInfo info{.kind = RunKind::kOptimizer,
               .program = "test",
               .run_uuid = "bb",
               .place = root + "/kept",
               .leftovers = {StateFiles::OfOneRank({drive}, "aa")}};
  ASSERT_TRUE(WriteRunInfo(folder, info).ok());
  EXPECT_EQ(RemoveLeftCopy(info.place).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(fs::exists(drive) && fs::exists(folder.PathOf(kInfoName)));
}

TEST(HeldRunTest, AStateWithAnotherNameIsNotTrainedInPlace) {
  const TempFolder base;
  const std::string root = fs::canonical(base.Path());
  const std::string file = base.Write("drive/penstock-aa.state", "state");
  const RunRequest request{
      .folder = root + "/run", .nvme_paths = {root + "/drive"}, .program = "test"};
  HeldRun run = HeldRun::Open(request).value();
  ASSERT_TRUE(
      run.NoteCommit(StateFiles::OfOneRank({root + "/drive/penstock-aa.state"}, "aa")).ok());
  EXPECT_TRUE(run.OwnFolders().has_value());
  fs::create_hard_link(file, root + "/kept");
  EXPECT_FALSE(run.OwnFolders().has_value());
}

/// A run on a drive, with the files that a commit would make.
class RunOnDriveTest : public ::testing::Test {
 protected:
  RunOnDriveTest() { fs::create_directory(drive_); }
  Result<HeldRun> Open() const { return HeldRun::Open(request_); }
  void Commit() const {
    HeldRun run = Open().value();
    base_.Write("drive/penstock-aa.state", "state");
    ASSERT_TRUE(run.NoteCommit(state_).ok());
  }
  void Edit(const std::string& from, const std::string& to) const {
    std::string text = base_.Read("run/run.json");
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    base_.Write("run/run.json", text.replace(at, from.size(), to));
  }

  const TempFolder base_;
  const std::string root_ = fs::canonical(base_.Path());
  const std::string drive_ = root_ + "/drive";
  const RunRequest request_{.folder = root_ + "/run", .nvme_paths = {drive_}, .program = "test"};
  const StateFiles state_ = StateFiles::OfOneRank({drive_ + "/penstock-aa.state"}, "aa");
};

TEST_F(RunOnDriveTest, WhereItsDriveIsAwayNobodyIsToldToMakeTheFolder) {
  fs::rename(drive_, root_ + "/away");
  EXPECT_TRUE(FailsWith(Open(), ErrorCode::kNotFound, {"make it first"}));
  fs::rename(root_ + "/away", drive_);
  Commit();
  fs::rename(drive_, root_ + "/away");
  const Result<HeldRun> run = Open();
  EXPECT_TRUE(FailsWith(run, ErrorCode::kNotFound, {root_ + "/run", "mount its drive"}));
  EXPECT_EQ(run.error().message.find("make it"), std::string::npos);
}

TEST_F(RunOnDriveTest, AResumeThatChangesNothingInRunJsonLeavesTheFile) {
  Commit();
  const FileId before = IdAt(root_ + "/run/run.json").value();
  EXPECT_TRUE(Open().ok());
  EXPECT_EQ(IdAt(root_ + "/run/run.json").value(), before);
}

TEST_F(RunOnDriveTest, ARunThatNamesNoCommitDoesNotBeginAnewBesideItsState) {
  Commit();
  const std::string named = base_.Read("run/run.json");
  const size_t begin = named.find("\"state\": {");
  const size_t end = named.find("\"leftovers\"");
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos);
  Edit(named.substr(begin, end - begin), "\"state\": null, ");
  EXPECT_TRUE(
      FailsWith(Open(), ErrorCode::kNotFound, {drive_ + "/penstock-aa.state", "put it back"}));
  base_.Write("run/run.json", named);
  EXPECT_TRUE(Open().ok());
}

TEST(HeldRunTest, NothingIsPutWhereTheDriveOfTheStateIsNotMounted) {
  const TempFolder base;
  const std::string root = fs::canonical(base.Path());
  const std::string drive = root + "/drive";
  fs::create_directory(drive);
  const RunRequest request{.folder = root + "/run", .nvme_paths = {drive}, .program = "test"};
  const StateFiles state = StateFiles::OfOneRank({drive + "/penstock-aa.state"}, "aa");
  {
    HeldRun run = HeldRun::Open(request).value();
    ASSERT_TRUE(run.Announce(state).ok());
    ASSERT_TRUE(run.NoteCommit(state).ok());
  }
  fs::rename(drive, root + "/away");
  fs::create_directory(drive);
  EXPECT_TRUE(HeldRun::Open(request).ok());
  EXPECT_TRUE(fs::is_empty(drive));
}

}  // namespace
}  // namespace penstock::train
