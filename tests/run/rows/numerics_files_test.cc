#include "run/rows/numerics_files.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "run/rows/put_aside.h"
#include "run/run_folder.h"
#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

Report ReportOf(uint64_t step, ReportKind kind = ReportKind::kLossSpike) {
  return {.step = step, .kind = kind, .message = "step " + std::to_string(step)};
}

std::vector<uint64_t> StepsOf(const std::vector<Report>& reports) {
  std::vector<uint64_t> steps;
  for (const Report& report : reports) steps.push_back(report.step);
  return steps;
}

std::string HeadroomLine(uint64_t step) {
  return R"({"step":)" + std::to_string(step) +
         R"(,"attention":[1.0],"mlp":[2.0],"residual":[3.0]})";
}

class NumericsFilesTest : public testing::Test {
 protected:
  /// Steps 1, 3 and, because an update ends late, 2; headroom of steps 1 and 3.
  void WriteSome() {
    NumericsWriter writer = NumericsWriter::Create(run_).value();
    for (const uint64_t step : {1, 3, 2}) ASSERT_TRUE(writer.Append(ReportOf(step)).ok());
    for (const uint64_t step : {1, 3}) {
      ASSERT_TRUE(writer.AppendHeadroom(HeadroomLine(step)).ok());
    }
    ASSERT_TRUE(writer.Sync().ok());
  }

  TempFolder temp_;
  Folder run_ = temp_.Open();
};

TEST_F(NumericsFilesTest, ARunWithoutReportsHasNoFiles) {
  const NumericsWriter writer = NumericsWriter::Create(run_).value();
  EXPECT_TRUE(writer.Sync().ok());
  EXPECT_TRUE(temp_.List().empty());
  EXPECT_TRUE(ReadReports(run_).value().empty());
  EXPECT_TRUE(ReadHeadroom(run_).value().empty());
  EXPECT_TRUE(NumericsWriter::Resume(run_, 5, [](const std::string&) {}).ok());
  EXPECT_TRUE(temp_.List().empty());
}

TEST_F(NumericsFilesTest, LinesAreInTheOrderInWhichTheyWereMade) {
  WriteSome();
  EXPECT_EQ(StepsOf(ReadReports(run_).value()), (std::vector<uint64_t>{1, 3, 2}));
  EXPECT_EQ(temp_.Read(kHeadroomName), HeadroomLine(1) + "\n" + HeadroomLine(3) + "\n");
}

TEST_F(NumericsFilesTest, AResumeRemovesTheLinesOfLaterStepsAndAppends) {
  WriteSome();
  NumericsWriter writer = NumericsWriter::Resume(run_, 2, [](const std::string&) {}).value();
  EXPECT_EQ(StepsOf(ReadReports(run_).value()), (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(temp_.Read(kHeadroomName), HeadroomLine(1) + "\n");
  ASSERT_TRUE(writer.Append(ReportOf(4)).ok());
  EXPECT_EQ(StepsOf(ReadReports(run_).value()), (std::vector<uint64_t>{1, 2, 4}));
}

TEST_F(NumericsFilesTest, AResumeThatTakesOutNothingLeavesTheFilesAlone) {
  WriteSome();
  const FileId before = run_.Look(kReportsName)->id;
  ASSERT_TRUE(NumericsWriter::Resume(run_, 3, [](const std::string&) {}).ok());
  EXPECT_EQ(run_.Look(kReportsName)->id, before);
}

TEST_F(NumericsFilesTest, AHardLinkOfAFileKeepsItsLines) {
  WriteSome();
  const std::string before = temp_.Read(kReportsName);
  std::filesystem::create_hard_link(temp_.Path(kReportsName), temp_.Path("linked"));
  NumericsWriter writer = NumericsWriter::Resume(run_, 3, [](const std::string&) {}).value();
  ASSERT_TRUE(writer.Append(ReportOf(4)).ok());
  EXPECT_EQ(temp_.Read("linked"), before);
  EXPECT_EQ(StepsOf(ReadReports(run_).value()), (std::vector<uint64_t>{1, 3, 2, 4}));
}

TEST_F(NumericsFilesTest, AFileThatIsTooLargeToReadIsPutAsideAndStaysTheRuns) {
  WriteSome();
  std::filesystem::resize_file(temp_.Path(kHeadroomName), (64_MiB).value + 1);
  Result<NumericsWriter> writer = NumericsWriter::Resume(run_, 2, [](const std::string&) {});
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  EXPECT_TRUE(ReadHeadroom(run_).value().empty());
  ASSERT_TRUE(writer->AppendHeadroom(HeadroomLine(3)).ok());
  EXPECT_EQ(temp_.Read(kHeadroomName), HeadroomLine(3) + "\n");
  EXPECT_EQ(StepsOf(ReadReports(run_).value()), (std::vector<uint64_t>{1, 2}));
  std::vector<std::string> of_run;
  const Result<std::vector<FoundFile>> files = FilesOfRun(run_);
  ASSERT_TRUE(files.ok()) << files.error().message;
  for (const FoundFile& file : *files) of_run.push_back(file.name);
  EXPECT_THAT(of_run, testing::UnorderedElementsAre(kReportsName, kHeadroomName,
                                                    std::string(kHeadroomName) + kAside));
}

TEST_F(NumericsFilesTest, WhatIsDamagedGoesWithAllBehindIt) {
  for (const std::string& damage :
       {std::string("garbage\n"), ToJson(ReportOf(2)).substr(0, 20), std::string(9, '\0')}) {
    temp_.Write(kReportsName, ToJson(ReportOf(1)) + "\n" + damage + "\n" + ToJson(ReportOf(2)));
    EXPECT_EQ(StepsOf(ReadReports(run_).value()), std::vector<uint64_t>{1});
    ASSERT_TRUE(NumericsWriter::Resume(run_, 9, [](const std::string&) {}).ok());
    EXPECT_EQ(temp_.Read(kReportsName), ToJson(ReportOf(1)) + "\n");
  }
}

TEST_F(NumericsFilesTest, ATornLastLineIsNone) {
  temp_.Write(kReportsName, ToJson(ReportOf(1)) + "\n" + ToJson(ReportOf(2)));
  EXPECT_EQ(StepsOf(ReadReports(run_).value()), std::vector<uint64_t>{1});
}

TEST_F(NumericsFilesTest, ANewRunWritesIntoNoFileOfOthers) {
  for (const char* name : {kReportsName, kHeadroomName, kBlackBoxName}) {
    temp_.Write(name, "mine");
    EXPECT_TRUE(FailsWith(NumericsWriter::Create(run_), ErrorCode::kInvalidArgument,
                          {temp_.Path(name), "was there before"}));
    ASSERT_TRUE(run_.RemoveFile(name).ok());
  }
}

TEST_F(NumericsFilesTest, ALinkIsNotFollowed) {
  TempFolder other;
  const std::string target = other.Write("file", "theirs\n");
  std::filesystem::create_symlink(target, temp_.Path(kReportsName));
  EXPECT_FALSE(NumericsWriter::Resume(run_, 3, [](const std::string&) {}).ok());
  EXPECT_FALSE(ReadReports(run_).ok());
  EXPECT_EQ(other.Read("file"), "theirs\n");
}

TEST_F(NumericsFilesTest, TheBlackBoxReplacesTheOneOfAnEarlierStop) {
  ASSERT_TRUE(WriteBlackBox(run_, "first\n").ok());
  ASSERT_TRUE(WriteBlackBox(run_, "second\n").ok());
  EXPECT_EQ(temp_.Read(kBlackBoxName), "second\n");
  EXPECT_EQ(temp_.List().size(), 1U);
}

}  // namespace
}  // namespace penstock::train
