#include "run/observers/doubt_notes.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <vector>

#include "run/doubted_commit.h"
#include "tests/run/observers/support.h"
#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class DoubtNotesTest : public ::testing::Test {
 protected:
  void Step(std::optional<uint64_t> doubted) {
    DoneStep step = Doubting(doubted);
    EXPECT_TRUE(notes_.AfterStep(step).ok());
  }
  std::optional<uint64_t> Noted() const { return DoubtedStep(folder_, "0123"); }

  const TempFolder run_;
  const Folder folder_ = run_.Open();
  std::vector<std::string> said_;
  DoubtNotes notes_{folder_, "0123", [this](const std::string& line) { said_.push_back(line); }};
};

TEST_F(DoubtNotesTest, TheNoteFollowsTheCommitThatIsInDoubt) {
  Step({});
  EXPECT_THAT(run_.List(), IsEmpty()) << "healthy steps write nothing";
  Step(5);
  EXPECT_EQ(Noted(), 5U);
  Step({});
  EXPECT_EQ(Noted(), std::nullopt);
  Step(7);
  Step(8);
  EXPECT_EQ(Noted(), 8U);
}

TEST_F(DoubtNotesTest, ItIsWrittenWhenTheDoubtChangesAlone) {
  Step(5);
  std::filesystem::remove(run_.Path(kDoubtName));
  Step(5);
  EXPECT_FALSE(run_.Has(kDoubtName));
}

TEST_F(DoubtNotesTest, AStepThatIsNeverFinishedCountsAndACommitThatIsTakenBackDoesNot) {
  notes_.Failing({ErrorCode::kNumeric, "not finite"}, 5);
  EXPECT_EQ(Noted(), 5U);
  notes_.AtEnd({.doubted_commit = {}});
  EXPECT_EQ(Noted(), std::nullopt);
}

TEST_F(DoubtNotesTest, ANoteThatCannotBeWrittenIsReportedAndEndsNothing) {
  std::filesystem::create_directory(run_.Path(kDoubtName));
  Step(5);
  EXPECT_THAT(said_, SizeIs(1));
}

}  // namespace
}  // namespace penstock::train
