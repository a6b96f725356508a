#include "front/commit_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "offload/caller_file.h"
#include "tests/temp_folder.h"

namespace penstock::front {
namespace {

const Identity kIdentity{.keys = R"({"kind":"module","rule":"AdamW"})", .older = "sha"};

Result<std::string> NoFile() {
  ADD_FAILURE() << "a file is read that the text does not name";
  return std::string();
}

/// A JSON object of so many bytes.
std::string ObjectOf(size_t bytes) { return R"({"a":")" + std::string(bytes - 8, 'x') + R"("})"; }

TEST(CommitTextTest, TheCallersPartComesBackByteForByte) {
  // A generator's state of 128 bits, a key order, spaces, and what looks like JSON in a string.
  for (const std::string caller :
       {R"({"z": 340282366920938463463374607431768211455, "a":[1 , {"b": 1e-7}]})", R"({})",
        R"({"caller":"}\"]{\\","run":{"caller":3}})"}) {
    const Result<CommitText> text = MakeCommitText(kIdentity, caller, "");
    ASSERT_TRUE(text.ok()) << text.error().message;
    EXPECT_EQ(text->caller_file, "");
    const Result<std::string> back = CallersPart(text->text, kIdentity, "/run", NoFile);
    ASSERT_TRUE(back.ok()) << back.error().message;
    EXPECT_EQ(*back, caller);
  }
}

TEST(CommitTextTest, ALongerCallersPartIsInAFileThatTheTextNames) {
  const std::string longest = ObjectOf(kMaxCallerInText.value);
  EXPECT_EQ(MakeCommitText(kIdentity, longest, "")->caller_file, "");
  const std::string longer = ObjectOf(kMaxCallerInText.value + 1);
  const CommitText text = MakeCommitText(kIdentity, longer, "").value();
  EXPECT_EQ(text.caller_file, longer);
  EXPECT_EQ(text.text, R"({"run":)" + kIdentity.keys +
                           R"(,"caller_file":{"bytes":32769,"xxh3":"851c4af8ce3c0b79"}})");
  const auto file = offload::CallerFileIn(text.text);
  ASSERT_TRUE(file.ok() && *file);
  EXPECT_EQ((*file)->bytes.value, longer.size());
  const Result<std::string> back =
      CallersPart(text.text, kIdentity, "/run", [&] { return Result<std::string>(longer); });
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(*back, longer);
}

TEST(CommitTextTest, ACallersPartThatNoFileHoldsIsRefusedByItsSize) {
  EXPECT_TRUE(FailsWith(
      MakeCommitText(kIdentity, std::string(offload::kMaxCallerFile.value + 1, '{'), "").status(),
      ErrorCode::kInvalidArgument, {"has 268435457 bytes", "at most 268435456"}));
}

TEST(CommitTextTest, AFileThatDoesNotHoldIsTheErrorOfItsReading) {
  const CommitText text = MakeCommitText(kIdentity, ObjectOf(40000), "").value();
  EXPECT_TRUE(FailsWith(
      CallersPart(text.text, kIdentity, "/run",
                  []() -> Result<std::string> { return MakeError(ErrorCode::kIo, "unreadable"); })
          .status(),
      ErrorCode::kIo, {"unreadable"}));
}

TEST(CommitTextTest, WhatIsNoObjectIsNotCommitted) {
  for (const char* caller : {"", "[]", "3", "{", R"({"a":1,"a":2})", R"({},"x":{})"}) {
    EXPECT_TRUE(FailsWith(MakeCommitText(kIdentity, caller, "").status(),
                          ErrorCode::kInvalidArgument, {"the text of the commit"}))
        << caller;
  }
}

TEST(CommitTextTest, TheSamplesOfTheStepsAreBesideTheCallersPart) {
  const std::string text = MakeCommitText(kIdentity, "{}", R"({"step":3})", 28)->text;
  EXPECT_EQ(SamplesOfCommit(text), 28U);
  EXPECT_EQ(CallersPart(text, kIdentity, "/run", NoFile).value(), "{}");
  EXPECT_EQ(SamplesOfCommit(MakeCommitText(kIdentity, "{}", "")->text), std::nullopt);
}

TEST(CommitTextTest, ADifferenceOfTrainingsHasTheNameOfItsKey) {
  const std::string text = MakeCommitText(kIdentity, "{}", "")->text;
  const Identity lion{.keys = R"({"kind":"module","rule":"Lion"})", .older = "sha"};
  EXPECT_TRUE(FailsWith(CallersPart(text, lion, "/run", NoFile).status(),
                        ErrorCode::kInvalidArgument,
                        {"/run", R"(its rule is "AdamW", and "Lion" was asked for)"}));
  const Identity more{.keys = R"({"kind":"module","rule":"AdamW","names":"1"})", .older = "sha"};
  EXPECT_TRUE(FailsWith(CallersPart(text, more, "/run", NoFile).status(),
                        ErrorCode::kInvalidArgument, {"its names is null"}));
  const Identity optimizer{.keys = R"({"kind":"optimizer","rule":"AdamW"})", .older = "sha"};
  EXPECT_TRUE(FailsWith(CallersPart(text, optimizer, "/run", NoFile).status(),
                        ErrorCode::kInvalidArgument, {R"(is of kind "module")"}));
}

TEST(CommitTextTest, AnOlderTextGivesTheCallersPart) {
  const std::string older =
      R"({"penstock_python": 1, "kind": "module", "identity": "sha", "calls": 7,)"
      R"( "groups": [{"lr": 0.1}], "random": {"x": 340282366920938463463374607431768211455},)"
      R"( "attached": {}})";
  const Result<std::string> caller = CallersPart(older, kIdentity, "/run", NoFile);
  ASSERT_TRUE(caller.ok()) << caller.error().message;
  EXPECT_EQ(*caller, R"({"groups":[{"lr": 0.1}],"random":{"x": )"
                     R"(340282366920938463463374607431768211455},"calls":7,"attached":{}})");
  const Identity other{.keys = kIdentity.keys, .older = "another"};
  EXPECT_TRUE(FailsWith(CallersPart(older, other, "/run", NoFile).status(),
                        ErrorCode::kInvalidArgument, {"is of another training"}));
  EXPECT_TRUE(
      FailsWith(CallersPart(R"({"penstock_python": 2})", kIdentity, "/run", NoFile).status(),
                ErrorCode::kCorruption, {"version 2"}));
}

TEST(CommitTextTest, ATextThatNoRunHasWrittenIsRefused) {
  for (const char* text : {"", "[1]", "{}", R"({"run":{}})", R"({"run":{},"caller":3})"}) {
    EXPECT_TRUE(FailsWith(CallersPart(text, kIdentity, "/run", NoFile).status(),
                          ErrorCode::kCorruption, {"/run"}))
        << text;
  }
}

}  // namespace
}  // namespace penstock::front
