#include "run/committed_run.h"

#include <gmock/gmock.h>

#include <string>

#include "run/identity/run_identity.h"

namespace penstock::train {
namespace {

using ::testing::HasSubstr;

const std::string kRun = R"({"seed":3,"arithmetic":"cpu"})";
const std::string kGrowing = R"({"penstock":{"rampup_batch_size":[2,2,8]},"arithmetic":"cpu"})";

std::string Nested(size_t levels) { return std::string(levels, '[') + std::string(levels, ']'); }

TEST(CommittedRunTest, WhatATrainingPutIntoItsCommitIsReadBack) {
  const auto texts =
      ReadCommitTexts(R"({"run":)" + kRun + R"(,"row":{"step":7,"loss":1.5}})", 7, "S");
  ASSERT_TRUE(texts.ok()) << texts.error().message;
  EXPECT_EQ(texts->identity, kRun);
  EXPECT_EQ(texts->row, R"({"step":7,"loss":1.5})");
  EXPECT_EQ(ArithmeticOf(texts->identity), "cpu");
  EXPECT_EQ(ReadCommitTexts(R"({"run":)" + kRun + "}", 0, "S")->row, "");
}

TEST(CommittedRunTest, WhatWasTakenOfTheDataIsReadBackIfTheBatchGrowsOrWasChanged) {
  const auto growing =
      ReadCommitTexts(R"({"run":)" + kGrowing + R"(,"consumed_samples":40})", 7, "S");
  ASSERT_TRUE(growing.ok()) << growing.error().message;
  EXPECT_EQ(growing->consumed_samples, 40U);
  EXPECT_EQ(ReadCommitTexts(R"({"run":)" + kRun + "}", 7, "S")->consumed_samples, std::nullopt);
  const auto changed = ReadCommitTexts(R"({"run":)" + kRun + R"(,"consumed_samples":42})", 7, "S");
  ASSERT_TRUE(changed.ok()) << changed.error().message;
  EXPECT_EQ(changed->consumed_samples, 42U);
}

TEST(CommittedRunTest, WhatNoTrainingPutsIntoACommitIsDamage) {
  const std::string texts[] = {
      "",
      "7",
      "[]",
      "{}",
      R"({"run":7})",
      R"({"run":[]})",
      R"({"run":{}})",
      R"({"run":{"arithmetic":7}})",
      R"({"run":{"arithmetic":"\xff"}})",
      R"({"run":{"arithmetic":"cpu"},"run":{"arithmetic":"cpu"}})",
      R"({"run":{"arithmetic":"cpu","deep":)" + Nested(30000) + "}}",
      R"({"run":)" + kRun + R"(,"row":7})",
      R"({"run":)" + kRun + R"(,"consumed_samples":40.5})",
      R"({"run":)" + kGrowing + "}",
      R"({"run":)" + kGrowing + R"(,"consumed_samples":-40})",
      R"({"run":)" + kGrowing + R"(,"consumed_samples":40.0})",
      R"({"run":)" + kGrowing + R"(,"consumed_samples":"40"})",
      R"({"run":)" + kRun + R"(,"row":{}})",
      R"({"run":)" + kRun + R"(,"row":{"step":6}})",
      R"({"run":)" + kRun + R"(,"row":{"step":7.0}})",
      R"({"run":)" + kRun + R"(,"row":{"step":"7"}})",
      R"({"run":)" + kRun + R"(,"row":{"step":7,"deep":)" + Nested(30000) + "}}",
  };
  for (const std::string& text : texts) {
    const auto read = ReadCommitTexts(text, 7, "PATH");
    ASSERT_FALSE(read.ok()) << text.substr(0, 100);
    EXPECT_EQ(read.error().code, ErrorCode::kCorruption);
    EXPECT_THAT(read.error().message, HasSubstr("PATH: what the commit of step 7"));
    EXPECT_LT(read.error().message.size(), 400);
  }
}

}  // namespace
}  // namespace penstock::train
