#include "offload/commit_agreement.h"

#include <gmock/gmock.h>

#include <vector>

namespace penstock::offload {
namespace {

using ::testing::HasSubstr;
using Held = std::vector<HeldCommit>;

HeldCommit Of(uint64_t step, uint64_t session, uint64_t sequence) {
  return {{.step = step, .session = session}, sequence};
}

void ExpectAgreed(const std::vector<Held>& of_ranks, const CommitName& expected) {
  const Result<std::vector<CommitName>> common = CommonCommits(of_ranks);
  ASSERT_TRUE(common.ok()) << common.error().message;
  const CommitName& newest = common->front();
  EXPECT_EQ(newest, expected) << newest.step << ", " << newest.session;
}

TEST(CommitAgreementTest, OneRankAgreesOnItsNewestCommit) {
  ExpectAgreed({{Of(8, 1, 4), Of(10, 1, 5)}}, {10, 1});
  ExpectAgreed({{Of(10, 1, 5), Of(8, 1, 4)}}, {10, 1});
  ExpectAgreed({{Of(10, 2, 5), Of(10, 1, 4)}}, {10, 2});
}

TEST(CommitAgreementTest, TheNewestCommitThatAllHoldCounts) {
  const Held torn = {Of(10, 1, 5), Of(8, 1, 4)};
  const Held before = {Of(8, 1, 4), Of(6, 1, 3)};
  ExpectAgreed({torn, torn, torn}, {10, 1});
  ExpectAgreed({torn, before, torn}, {8, 1});
  ExpectAgreed({before, torn, torn}, {8, 1});
  ExpectAgreed({torn, torn, {Of(8, 1, 4)}}, {8, 1});
}

TEST(CommitAgreementTest, AStepOfAnotherSessionIsAnotherCommit) {
  // As if rank 0 had kept what session 1 did after step 8, while rank 1 went on with session 2.
  ExpectAgreed({{Of(10, 1, 5), Of(8, 1, 4)}, {Of(10, 2, 5), Of(8, 1, 4)}}, {8, 1});
}

TEST(CommitAgreementTest, WithoutOneEachRanksStepsAreNamed) {
  const Held both = {Of(8, 10, 2), Of(10, 10, 3)};
  const auto cut_off = CommonCommits(std::vector<Held>{both, both, {}, both});
  ASSERT_FALSE(cut_off.ok());
  EXPECT_EQ(cut_off.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(cut_off.error().message,
              HasSubstr("(ranks 0-1, 3: steps 10 of session a, 8 of session a; rank 2: none)"));
  const auto mixed = CommonCommits(std::vector<Held>{both, {Of(8, 11, 2)}, {Of(8, 11, 2)}});
  ASSERT_FALSE(mixed.ok());
  EXPECT_EQ(mixed.error().code, ErrorCode::kCorruption);
  EXPECT_THAT(mixed.error().message, HasSubstr("ranks 1-2: step 8 of session b"));
}

TEST(CommitAgreementTest, ANewerCommitThatSomeRanksHoldIsNamed) {
  const Held newer = {Of(10, 1, 5), Of(8, 1, 4)};
  const Held older = {Of(8, 1, 4)};
  EXPECT_EQ(NewerNotice(std::vector<Held>{older, older}, {8, 1}), "");
  EXPECT_THAT(NewerNotice(std::vector<Held>{older, newer}, {8, 1}),
              testing::AllOf(HasSubstr("rank 1 holds a commit of step 10"),
                             HasSubstr("the commit of step 8 counts")));
}

}  // namespace
}  // namespace penstock::offload
