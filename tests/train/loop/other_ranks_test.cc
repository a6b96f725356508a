#include "train/loop/other_ranks.h"

#include <gmock/gmock.h>

#include "tests/run/observers/support.h"

namespace penstock::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OtherRanksTest : public ::testing::Test {
 protected:
  OtherRanks Make() {
    return OtherRanks({.doing = [this](std::string_view what) { done_.emplace_back(what); },
                       .tell = [this](const Error& why) { told_.push_back(why.message); },
                       .hosts = {"a", "b"},
                       .notify = [this](const std::string& line) { said_.push_back(line); }});
  }

  std::vector<std::string> done_;
  std::vector<std::string> told_;
  std::vector<std::string> said_;
};

TEST_F(OtherRanksTest, TheyHearWhatIsDoneWithWhichStepAndWhyThisOneFails) {
  OtherRanks ranks = Make();
  ranks.Doing("reads the data of", 7);
  EXPECT_THAT(done_, ElementsAre("reads the data of step 7"));
  ranks.Failing({ErrorCode::kIo, "a bad block"}, {});
  EXPECT_THAT(told_, ElementsAre("a bad block"));
}

TEST_F(OtherRanksTest, ARankForWhichTheOthersWaitIsNamedWithItsHostOnce) {
  OtherRanks ranks = Make();
  for (uint64_t i = 0; i < 5 * SlowRank::kSteps; ++i) {
    DoneStep step = Doubting({});
    // More seconds than pass in this test.
    step.waited = {1e6 * static_cast<double>(i), 0};
    EXPECT_TRUE(ranks.AfterStep(step).ok());
  }
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_THAT(said_[0], HasSubstr("rank 1 (host b) is slow"));
}

TEST_F(OtherRanksTest, ASingleRankTellsAndAwaitsNone) {
  OtherRanks ranks({.doing = {}, .tell = [](const Error&) {}, .hosts = {"a"}, .notify = {}});
  ranks.Doing("reads the data of", 7);
  for (uint64_t i = 0; i < 5 * SlowRank::kSteps; ++i) {
    DoneStep step = Doubting({});
    EXPECT_TRUE(ranks.AfterStep(step).ok());
  }
  EXPECT_THAT(said_, IsEmpty());
}

}  // namespace
}  // namespace penstock::train
