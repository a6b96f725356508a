#include "train/loop/skipped_step_search.h"

#include <gmock/gmock.h>

#include "numerics/thresholds.h"
#include "tests/run/observers/support.h"

namespace penstock::train {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kLastStep = 20;

class SkippedStepSearchTest : public ::testing::Test {
 protected:
  /// Returns what the step's numbers say of the first value that is not finite.
  std::string Skipped(uint64_t step, uint64_t in_a_row) {
    DoneStep done = Doubting({});
    done.numbers = {.step = step, .loss = 2, .steps_to_stop = 15};
    done.skipped_in_a_row = in_a_row;
    status_ = search_.AfterStep(done);
    return done.numbers.first ? done.numbers.first->tensor : "";
  }

  std::vector<uint64_t> searched_;
  Result<std::optional<FirstNonFinite>> found_ =
      std::optional(FirstNonFinite{.pass = Pass::kBackward, .tensor = "h.1"});
  Status status_;
  SkippedStepSearch search_{SearchRule(/*dynamic_loss_scale=*/true, /*every=*/false), kLastStep,
                            [this](const StepNumbers& numbers) {
                              searched_.push_back(numbers.step);
                              return found_;
                            }};
};

TEST_F(SkippedStepSearchTest, TheStepsOfAStreakAfterTheSearchHaveWhatWasFound) {
  EXPECT_EQ(Skipped(6, kOverflowsToReport - 1), "");
  EXPECT_EQ(Skipped(7, kOverflowsToReport), "h.1");
  EXPECT_EQ(Skipped(8, kOverflowsToReport + 1), "h.1");
  EXPECT_EQ(Skipped(9, 0), "") << "it was applied";
  EXPECT_THAT(searched_, ElementsAre(7));
}

TEST_F(SkippedStepSearchTest, TheLastStepOfTheRunIsNotSearched) {
  EXPECT_EQ(Skipped(kLastStep, kOverflowsToReport), "");
  EXPECT_THAT(searched_, ElementsAre());
  EXPECT_TRUE(status_.ok());
}

TEST_F(SkippedStepSearchTest, ASearchThatFailsEndsTheTraining) {
  found_ = MakeError(ErrorCode::kUnavailable, "rank 1 is gone");
  Skipped(7, kOverflowsToReport);
  ASSERT_FALSE(status_.ok());
  EXPECT_EQ(status_.error().message, "rank 1 is gone");
}

}  // namespace
}  // namespace penstock::train
