#include "run/doubted_commit.h"

#include <gtest/gtest.h>

#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

TEST(DoubtedCommit, IsKnownOfItsStateAloneUntilTheNoteIsRemoved) {
  const TempFolder run;
  EXPECT_EQ(DoubtedStep(run.Open(), "0123"), std::nullopt);
  ASSERT_TRUE(NoteDoubt(run.Open(), {.state_uuid = "0123", .step = 5}).ok());
  EXPECT_EQ(DoubtedStep(run.Open(), "0123"), 5U);
  EXPECT_EQ(DoubtedStep(run.Open(), "4567"), std::nullopt) << "the state was moved since";
  ASSERT_TRUE(RemoveDoubt(run.Open()).ok());
  ASSERT_TRUE(RemoveDoubt(run.Open()).ok()) << "there is none";
  EXPECT_EQ(DoubtedStep(run.Open(), "0123"), std::nullopt);
}

TEST(DoubtedCommit, ADamagedNoteSaysNothing) {
  const TempFolder run;
  for (const char* text :
       {"", "{", "[]", "{\"state_uuid\": \"0123\"}", "{\"state_uuid\": \"0123\", \"step\": -5}",
        "{\"state_uuid\": 123, \"step\": 5}", "{\"step\": 5}"}) {
    run.Write(kDoubtName, text);
    EXPECT_EQ(DoubtedStep(run.Open(), "0123"), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace penstock::train
