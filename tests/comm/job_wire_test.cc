#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "comm/watch.h"
#include "comm/wire.h"
#include "tests/search_share.h"
#include "tests/temp_folder.h"

namespace penstock::comm {
namespace {

Message Whole() {
  return {.type = MessageType::kVote,
          .number = 7,
          .a = UINT64_MAX,
          .b = uint64_t{1} << 40,
          .key = std::string("key\0\n", 5),
          .text = "text"};
}

/// What a parser makes of bytes that arrive at once.
Result<std::optional<Message>> Parse(std::string_view bytes, size_t most = kMaxPayload) {
  MessageParser parser(most);
  parser.Add(bytes);
  return parser.Next();
}

std::string WithWord(std::string bytes, size_t at, uint32_t word) {
  for (size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<char>(word >> (8 * i));
  return bytes;
}

TEST(WireTest, AMessageArrivesAsItWasSent) {
  EXPECT_EQ(*Parse(*EncodeMessage(Whole())).value(), Whole());
  EXPECT_EQ(*Parse(*EncodeMessage({})).value(), Message());
}

TEST(WireTest, MessagesArriveByteForByteAndTogether) {
  MessageParser parser(kMaxPayload);
  std::string bytes;
  for (uint64_t i = 0; i < 100; ++i) {
    bytes += *EncodeMessage({.number = i, .text = std::string(i, 'x')});
  }
  uint64_t next = 0;
  for (const char byte : bytes) {
    parser.Add({&byte, 1});
    const std::optional<Message> message = parser.Next().value();
    if (!message.has_value()) continue;
    EXPECT_EQ(message->number, next);
    EXPECT_EQ(message->text, std::string(next, 'x'));
    ++next;
  }
  EXPECT_EQ(next, 100U);
  parser.Add(bytes);
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(parser.Next().value()->number, i);
  EXPECT_FALSE(parser.Next().value().has_value());
}

TEST(WireTest, TheLargestTextFitsAndALargerOneIsRefused) {
  const Message largest = {.key = std::string(kMaxKey, 'k'), .text = std::string(kMaxText, 't')};
  EXPECT_EQ(*Parse(*EncodeMessage(largest)).value(), largest);
  const std::string frame = *EncodeMessage(Whole());
  const std::string longer = WithWord(frame, 8, kMaxPayload + 1);
  EXPECT_TRUE(FailsWith(Parse(longer), ErrorCode::kCorruption, {"its length"}));
  EXPECT_TRUE(FailsWith(Parse(WithWord(frame, 8, UINT32_MAX)), ErrorCode::kCorruption, {"length"}));
  EXPECT_TRUE(FailsWith(Parse(WithWord(frame, 8, 0)), ErrorCode::kCorruption, {"its length"}));
  EXPECT_TRUE(
      FailsWith(Parse(*EncodeMessage({.text = std::string(kMaxGreeting, 't')}), kMaxGreeting),
                ErrorCode::kCorruption, {"its length"}));
}

TEST(WireTest, WhatIsNoMessageIsSaidToBeNone) {
  const std::string frame = *EncodeMessage(Whole());
  EXPECT_TRUE(FailsWith(Parse("GET / HTTP/1.1\r\n\r\n"), ErrorCode::kCorruption, {"first bytes"}));
  EXPECT_TRUE(FailsWith(Parse(WithWord(frame, 4, 0)), ErrorCode::kCorruption, {"its type"}));
  EXPECT_TRUE(FailsWith(Parse(WithWord(frame, 4, 999)), ErrorCode::kCorruption, {"its type"}));
  EXPECT_TRUE(FailsWith(Parse(WithWord(frame, 36, 10)), ErrorCode::kCorruption, {"of its key"}));
  EXPECT_TRUE(
      FailsWith(Parse(WithWord(frame, 36, UINT32_MAX)), ErrorCode::kCorruption, {"of its key"}));
}

TEST(WireTest, NoBytesEndTheProgram) {
  std::mt19937_64 random(1);
  const std::string frame = *EncodeMessage(Whole());
  const std::string progress = EncodeProgress({.begun = Operation{3, 4, "x"}, .doing = "waits"});
  const std::string members = EncodeMembers({{"a", 1}, {"b", 2}});
  for (uint64_t i = 0; i < SearchShare(100'000); ++i) {
    for (const std::string& right : {frame, progress, members}) {
      std::string wrong = right;
      for (uint64_t change = random() % 4; change <= 4; ++change) {
        wrong[random() % wrong.size()] = static_cast<char>(random());
      }
      wrong.resize(random() % (wrong.size() + 1));
      (void)Parse(wrong).ok();
      (void)DecodeProgress(wrong).ok();
      (void)DecodeMembers(wrong, static_cast<uint32_t>(random())).ok();
    }
  }
}

TEST(WireTest, AStatusArrivesWithItsCode) {
  Message message;
  SetStatus({}, &message);
  EXPECT_TRUE(StatusOf(message).ok());
  SetStatus(Error{ErrorCode::kNumeric, "two\nlines"}, &message);
  EXPECT_TRUE(FailsWith(StatusOf(message), ErrorCode::kNumeric, {"two lines"}));
  message.a = 1000;
  EXPECT_TRUE(FailsWith(StatusOf(message), ErrorCode::kUnavailable, {"two lines"}));
  SetStatus(Error{ErrorCode::kIo, std::string(100'000, 'x')}, &message);
  EXPECT_EQ(message.text.size(), kMaxError);
}

TEST(WireTest, ProgressAndMembersArriveAsTheyWere) {
  const Progress progress = {.pieces = 1ULL << 40,
                             .enqueued = Operation{12, 18, "weights of h.4"},
                             .begun = Operation{12, 17, "weights of h.3"},
                             .ended = std::nullopt,
                             .doing = "waits for weights of h.2"};
  EXPECT_EQ(DecodeProgress(EncodeProgress(progress)).value(), progress);
  EXPECT_EQ(DecodeProgress(EncodeProgress({})).value(), Progress());
  const std::vector<Member> members = {{"a", 1}, {"", 0}, {"host-with-a-name", UINT64_MAX}};
  EXPECT_EQ(DecodeMembers(EncodeMembers(members), 3).value(), members);
  EXPECT_FALSE(DecodeMembers(EncodeMembers(members), 2).ok());
  EXPECT_FALSE(DecodeMembers(EncodeMembers(members), 4).ok());
}

TEST(MembersTest, TextBecomesOneLineOfABoundedLength) {
  EXPECT_EQ(OneLine("a\nb\x7F\t", 10), "a b  ");
  EXPECT_EQ(OneLine("abc", 2), "ab");
  EXPECT_EQ(OneLine("a\xC3\xA4", 2), "a");  // half an ä
  EXPECT_EQ(OneLine("\x80\x80", 1), "");
  EXPECT_EQ(OneLine("", 0), "");
}

TEST(MembersTest, ManyRanksAreCounted) {
  EXPECT_EQ(RankList({2}), "rank 2");
  EXPECT_EQ(RankList({2, 3}), "ranks 2, 3");
  EXPECT_EQ(RankList({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
}

}  // namespace
}  // namespace penstock::comm
