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
  const Result<CommitName> agreed = AgreedCommit(of_ranks);
  ASSERT_TRUE(agreed.ok()) << agreed.error().message;
  EXPECT_EQ(*agreed, expected) << agreed->step << ", " << agreed->session;
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
  const Result<CommitName> cut_off = AgreedCommit(std::vector<Held>{both, both, {}, both});
  ASSERT_FALSE(cut_off.ok());
  EXPECT_EQ(cut_off.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(cut_off.error().message,
              HasSubstr("(ranks 0-1, 3: steps 10 of session a, 8 of session a; rank 2: none)"));
  const Result<CommitName> mixed =
      AgreedCommit(std::vector<Held>{both, {Of(8, 11, 2)}, {Of(8, 11, 2)}});
  ASSERT_FALSE(mixed.ok());
  EXPECT_EQ(mixed.error().code, ErrorCode::kCorruption);
  EXPECT_THAT(mixed.error().message, HasSubstr("ranks 1-2: step 8 of session b"));
}

}  // namespace
}  // namespace penstock::offload
