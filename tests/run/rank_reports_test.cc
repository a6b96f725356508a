#include "run/rank_reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "run/run_folder.h"
#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class RankReportsTest : public testing::Test {
 protected:
  RankReportsTest() {
    std::filesystem::create_directory(folder_.Path("run"));
    const RunInfo info{.run_uuid = "a",
                       .place = folder_.Path("run"),
                       .state = StateFiles::OfOneRank({"state"}, "b")};
    PENSTOCK_CHECK(WriteRunInfo(folder_.Open("run"), info).ok());
  }

  Status Write(uint32_t rank, const std::string& text, const std::string& run_uuid = "a") const {
    return WriteRankReport(folder_.Path("run"), run_uuid, rank, text);
  }
  std::vector<std::string> Found() const {
    std::vector<std::string> names;
    const Folder reports = OpenReportsFolder(folder_.Open("run")).value();
    const std::vector<FoundFile> files = ReportFiles(reports).value();
    for (const FoundFile& file : files) names.push_back(file.name);
    return names;
  }

  const TempFolder folder_;
};

TEST_F(RankReportsTest, EachRankHasAFileThatTheNextFailureReplaces) {
  for (const char* text : {"one", "two"}) {
    ASSERT_TRUE(Write(3, text).ok());
    ASSERT_TRUE(Write(0, text).ok());
    EXPECT_EQ(folder_.Read("run/ranks/rank-3.txt"), text);
  }
  EXPECT_THAT(folder_.List("run/ranks"), ElementsAre("rank-0.txt", "rank-3.txt"));
}

TEST_F(RankReportsTest, OnlyReportsAndWhatWouldHaveBecomeOneAreFound) {
  for (const char* name : {"rank-0.txt", "rank-12.txt", "rank-1.txt.tmp-99", "rank-.txt",
                           "rank-1a.txt", "rank-1.txt.tmp-x", "rank-1", "notes.txt"}) {
    folder_.Write(std::string("run/ranks/") + name, "x");
  }
  std::filesystem::create_directory(folder_.Path("run/ranks/rank-5.txt"));
  EXPECT_THAT(Found(), ElementsAre("rank-0.txt", "rank-1.txt.tmp-99", "rank-12.txt"));
}

TEST_F(RankReportsTest, NothingIsWrittenThroughLinks) {
  folder_.Write("other/rank-1.txt", "mine");
  std::filesystem::create_symlink("../other", folder_.Path("run/ranks"));
  EXPECT_FALSE(Write(1, "report").ok());
  EXPECT_EQ(folder_.Read("other/rank-1.txt"), "mine");
  std::filesystem::remove(folder_.Path("run/ranks"));

  std::filesystem::create_directory(folder_.Path("run/ranks"));
  std::filesystem::create_symlink("../../other/rank-1.txt", folder_.Path("run/ranks/rank-1.txt"));
  EXPECT_FALSE(Write(1, "report").ok());
  EXPECT_EQ(folder_.Read("other/rank-1.txt"), "mine");
  EXPECT_THAT(Found(), IsEmpty());
}

TEST_F(RankReportsTest, AnotherRunGetsNone) {
  EXPECT_TRUE(FailsWith(Write(0, "report", "b"), ErrorCode::kNotFound, {"is another run"}));
  EXPECT_THAT(folder_.List("run"), ElementsAre("run.json"));
}

TEST_F(RankReportsTest, AFolderThatIsNoRunGetsNone) {
  std::filesystem::remove(folder_.Path("run/run.json"));
  EXPECT_TRUE(FailsWith(Write(0, "report"), ErrorCode::kNotFound, {"run.json"}));
  EXPECT_THAT(folder_.List("run"), IsEmpty());
  EXPECT_FALSE(WriteRankReport(folder_.Path("gone"), "a", 0, "report").ok());
}

}  // namespace
}  // namespace penstock::train
