#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "comm/hub.h"
#include "tests/temp_folder.h"

namespace penstock::comm {
namespace {

class HubTest : public testing::Test {
 protected:
  /// The calls of a rank, numbered as a job's are.
  std::vector<Message> Say(uint32_t rank, Message message) {
    const Channel channel = ChannelOf(message.type);
    message.number = CallNumber(channel, ++counts_[rank][static_cast<size_t>(channel)]);
    return hub_.Receive(rank, std::move(message));
  }
  std::vector<Message> Agree(uint32_t rank, const Status& status = {}) {
    Message message{.type = MessageType::kAgree};
    SetStatus(status, &message);
    return Say(rank, std::move(message));
  }
  std::vector<Message> Gather(uint32_t rank, const std::string& text) {
    return Say(rank, {.type = MessageType::kGather, .text = text});
  }
  std::vector<Message> Vote(uint32_t rank, uint64_t step, uint64_t session) {
    return Say(rank, {.type = MessageType::kVote, .a = step, .b = session});
  }
  std::vector<Message> Finish(uint32_t rank) { return Say(rank, {.type = MessageType::kFinish}); }
  testing::AssertionResult EndsWith(EndKind kind, ErrorCode code,
                                    const std::vector<std::string>& parts) {
    if (!hub_.ending().has_value()) return testing::AssertionFailure() << "the job has not ended";
    if (hub_.ending()->kind != kind) return testing::AssertionFailure() << "another kind of end";
    return FailsWith(hub_.ending()->why, code, parts);
  }

  Hub hub_{{{"a", 100}, {"b", 101}, {"c", 102}}};
  uint64_t counts_[3][kChannels] = {};
};

TEST_F(HubTest, AllAgreeWhenTheLastHasSaidSo) {
  EXPECT_TRUE(Agree(2).empty());
  EXPECT_TRUE(Agree(0).empty());
  const std::vector<Message> replies = Agree(1);
  ASSERT_EQ(replies.size(), 1U);
  EXPECT_EQ(replies[0].type, MessageType::kReply);
  EXPECT_EQ(replies[0].number, CallNumber(Channel::kTogether, 1));
  EXPECT_TRUE(Agree(0).empty());
  EXPECT_FALSE(hub_.ending().has_value());
}

TEST_F(HubTest, TheErrorOfTheLowestRankIsTheOneThatAllHear) {
  Agree(2, Error{ErrorCode::kIo, "of rank 2"});
  Agree(1, Error{ErrorCode::kOutOfSpace, "of rank 1"});
  EXPECT_FALSE(hub_.ending().has_value());
  EXPECT_TRUE(Agree(0).empty());
  EXPECT_TRUE(EndsWith(EndKind::kAgreed, ErrorCode::kOutOfSpace, {"rank 1 (host b): of rank 1"}));
}

TEST_F(HubTest, AnErrorWithTheSameTextOnAllRanksNamesNoRank) {
  for (uint32_t rank = 0; rank < 3; ++rank) Agree(rank, Error{ErrorCode::kIo, "the same"});
  EXPECT_TRUE(EndsWith(EndKind::kAgreed, ErrorCode::kIo, {"the same"}));
  EXPECT_EQ(hub_.ending()->why.error().message, "the same");
}

TEST_F(HubTest, TheSameWordsWithAnotherCodeAreNotTheSame) {
  Agree(0, Error{ErrorCode::kIo, "the same"});
  Agree(1, Error{ErrorCode::kCorruption, "the same"});
  Agree(2, Error{ErrorCode::kIo, "the same"});
  EXPECT_TRUE(EndsWith(EndKind::kAgreed, ErrorCode::kIo, {"rank 0 (host a): the same"}));
}

TEST_F(HubTest, WhatIsGatheredComesInTheOrderOfRanks) {
  Gather(1, "one");
  Gather(2, "");
  const std::vector<Message> replies = Gather(0, "zero");
  ASSERT_EQ(replies.size(), 3U);
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(replies[rank].b, rank);
  EXPECT_EQ(replies[0].text, "zero");
  EXPECT_EQ(replies[1].text, "one");
  EXPECT_EQ(replies[2].text, "");
}

TEST_F(HubTest, VotesRunBesideOtherCalls) {
  Vote(0, 10, 7);
  Agree(1);
  Agree(0);
  Vote(1, 10, 7);
  EXPECT_EQ(Vote(2, 10, 7).size(), 1U);
  EXPECT_EQ(Agree(2).size(), 1U);
}

TEST_F(HubTest, AnotherVoteEndsTheJob) {
  Vote(0, 10, 7);
  Vote(2, 11, 7);
  EXPECT_TRUE(EndsWith(EndKind::kVerdict, ErrorCode::kUnavailable,
                       {"rank 2 (host c, pid 102) votes for step 11 of session 0000000000000007",
                        "rank 0 (host a, pid 100) votes for step 10"}));
}

TEST_F(HubTest, AVoteForAnotherSessionEndsTheJob) {
  Vote(0, 10, 7);
  Vote(1, 10, 8);
  EXPECT_TRUE(EndsWith(EndKind::kVerdict, ErrorCode::kUnavailable, {"session 0000000000000008"}));
}

TEST_F(HubTest, ARankThatDoesSomethingElseEndsTheJob) {
  Agree(0);
  Gather(1, "x");
  EXPECT_TRUE(EndsWith(EndKind::kVerdict, ErrorCode::kUnavailable,
                       {"rank 1 (host b, pid 101) gathers, and rank 0", "agrees"}));
  EXPECT_TRUE(Agree(2).empty());
}

TEST_F(HubTest, ARankThatFinishesWhileOthersWaitForItEndsTheJob) {
  Agree(0);
  Finish(1);
  EXPECT_TRUE(EndsWith(EndKind::kVerdict, ErrorCode::kUnavailable,
                       {"rank 1 (host b, pid 101) finishes, and rank 0", "agrees"}));
}

TEST_F(HubTest, ARankThatContinuesAfterAnotherHasFinishedEndsTheJob) {
  Finish(1);
  EXPECT_TRUE(hub_.has_finished(1));
  EXPECT_FALSE(hub_.has_finished(0));
  Vote(0, 1, 1);
  EXPECT_TRUE(EndsWith(EndKind::kVerdict, ErrorCode::kUnavailable,
                       {"rank 0 (host a, pid 100) votes", "rank 1", "finishes"}));
}

TEST_F(HubTest, TheJobHasFinishedWhenAllHave) {
  Finish(1);
  Finish(0);
  EXPECT_FALSE(hub_.ending().has_value());
  Finish(2);
  ASSERT_TRUE(hub_.ending().has_value());
  EXPECT_EQ(hub_.ending()->kind, EndKind::kFinished);
}

TEST_F(HubTest, CallsThatNoRankOfOursMakesEndTheJob) {
  Agree(1);
  Agree(1);
  EXPECT_TRUE(EndsWith(EndKind::kVerdict, ErrorCode::kUnavailable, {"rank 1", "another call"}));
  Hub other({{"a", 1}, {"b", 2}});
  other.Receive(1, {.type = MessageType::kWelcome});
  ASSERT_TRUE(other.ending().has_value());
  Hub twice({{"a", 1}, {"b", 2}});
  const Message call = {.type = MessageType::kFinish, .number = CallNumber(Channel::kFinish, 1)};
  twice.Receive(1, call);
  twice.Receive(1, call);
  EXPECT_TRUE(FailsWith(twice.ending()->why, ErrorCode::kUnavailable, {"two calls at once"}));
}

}  // namespace
}  // namespace penstock::comm
