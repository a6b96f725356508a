#include "run/identity/skipped_steps.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace penstock::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kLastStep = 1000;

std::string SkipRefusal(const std::vector<StepRange>& recorded, const std::vector<StepRange>& asked,
                        uint64_t committed, uint64_t last_step = kLastStep) {
  const auto ranges = AddSkips(recorded, asked, committed, last_step);
  if (ranges.ok()) return "none";
  EXPECT_EQ(ranges.error().code, ErrorCode::kInvalidArgument);
  return ranges.error().message;
}

TEST(SkippedSteps, AreTheFirstAndTheLast) {
  EXPECT_THAT(ParseSkips({"103:105", "7:7"}).value(),
              ElementsAre(StepRange{103, 105}, StepRange{7, 7}));
  for (const char* text :
       {"", "7", ":7", "7:", "0:7", "7:6", "-1:7", "1:2:3", "a:b", "1:9e9", "1:281474976710657"}) {
    const auto refused = ParseSkips({text});
    ASSERT_FALSE(refused.ok()) << text;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message, HasSubstr("like 103:105"));
  }
}

TEST(SkippedSteps, AreAddedInTheOrderOfTheSteps) {
  EXPECT_THAT(AddSkips({}, {}, 5, kLastStep).value(), IsEmpty());
  EXPECT_THAT(AddSkips({{20, 25}}, {{30, 30}, {6, 8}}, 5, kLastStep).value(),
              ElementsAre(StepRange{6, 8}, StepRange{20, 25}, StepRange{30, 30}));
}

TEST(SkippedSteps, ThatAreCommittedAreRefused) {
  EXPECT_THAT(SkipRefusal({}, {{5, 9}}, 5),
              AllOf(HasSubstr("--skip-steps 5:9"), HasSubstr("from 6 on"), HasSubstr("snapshot")));
}

TEST(SkippedSteps, TheSameOnesMayBeAskedForAgain) {
  for (const uint64_t committed : {5, 30}) {
    EXPECT_THAT(AddSkips({{20, 25}}, {{20, 25}}, committed, kLastStep).value(),
                ElementsAre(StepRange{20, 25}));
  }
}

TEST(SkippedSteps, ThatOverlapAreRefused) {
  for (const StepRange& other : {StepRange{18, 20}, StepRange{25, 30}, StepRange{21, 22}}) {
    EXPECT_THAT(SkipRefusal({{20, 25}}, {other}, 5), HasSubstr("passes over 20:25 already"));
    EXPECT_THAT(SkipRefusal({}, {{20, 25}, other}, 5), HasSubstr("passes over 20:25 already"));
  }
  EXPECT_EQ(SkipRefusal({{20, 25}}, {{26, 30}, {19, 19}}, 5), "none");
}

TEST(SkippedSteps, ARunEndsWithAStepThatIsComputed) {
  for (const uint64_t last_step : {20, 22, 25}) {
    EXPECT_THAT(SkipRefusal({{20, 25}}, {}, 5, last_step), HasSubstr("give --steps 26 or more"));
    EXPECT_THAT(SkipRefusal({}, {{20, 25}}, 5, last_step), HasSubstr("give --steps 26 or more"));
  }
  for (const uint64_t last_step : {19, 26}) {
    EXPECT_EQ(SkipRefusal({{20, 25}}, {}, 5, last_step), "none");
  }
  EXPECT_EQ(SkipRefusal({{20, 25}}, {}, 30, 22), "none") << "that step is reached already";
}

}  // namespace
}  // namespace penstock::train
