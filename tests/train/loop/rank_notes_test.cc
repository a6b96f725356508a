#include "train/loop/rank_notes.h"

#include <gmock/gmock.h>

#include "tests/train/loop/trainer_loop_support.h"

namespace penstock::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Ranks that are asked to stop, and whose notes a test passes on.
class RankNotesTest : public ::testing::Test {
 protected:
  RankNotes Of(uint32_t rank, uint32_t size) {
    return {{.session = session_,
             .device = device_,
             .meter = meter_,
             .stop_requested = [this] { return stop_; },
             .exchange =
                 [this](const zero::StepNote& note) {
                   return Result<std::vector<zero::StepNote>>(
                       std::vector<zero::StepNote>(exchanged_, note));
                 }},
            {.size = size, .rank = rank},
            1_MiB};
  }

  ScriptedEngine engine_;
  zero::Session session_{engine_};
  FakeDevice device_;
  ActivityMeter meter_;
  bool stop_ = false;
  size_t exchanged_ = 0;
};

TEST_F(RankNotesTest, OneThatIsAloneKnowsAtOnceWhatItIsAsked) {
  RankNotes notes = Of(0, 1);
  EXPECT_FALSE(notes.StopRequested());
  stop_ = true;
  EXPECT_TRUE(notes.StopRequested());
  EXPECT_TRUE(notes.CommitWanted(true));
  EXPECT_FALSE(notes.CommitWanted(false));
  EXPECT_FALSE(notes.Copying());
  EXPECT_TRUE(notes.Exchange(false).ok());
  EXPECT_THAT(notes.Waited(), IsEmpty());
}

TEST_F(RankNotesTest, RanksStopOnceAllHaveTheRequestAndKeepStopping) {
  RankNotes first = Of(0, 2);
  RankNotes second = Of(1, 2);
  const zero::StepNote healthy = first.Mine(false);
  stop_ = true;
  EXPECT_FALSE(second.StopRequested()) << "the other does not know it yet";
  const zero::StepNote asked = second.Mine(false);
  for (RankNotes* notes : {&first, &second}) {
    notes->Take({healthy, asked});
    EXPECT_TRUE(notes->StopRequested());
    notes->Take({healthy, healthy});
    EXPECT_TRUE(notes->StopRequested());
  }
}

TEST_F(RankNotesTest, TheClockOfRankZeroDecidesForAll) {
  RankNotes notes = Of(1, 2);
  const zero::StepNote due = notes.Mine(true);
  const zero::StepNote not_due = notes.Mine(false);
  EXPECT_FALSE(notes.CommitWanted(true)) << "no rank has told yet";
  notes.Take({due, not_due});
  EXPECT_TRUE(notes.CommitWanted(false));
  notes.Take({not_due, due});
  EXPECT_FALSE(notes.CommitWanted(true));
}

TEST_F(RankNotesTest, ACopyThatBeganLastsUntilTheNextNotesSayOtherwise) {
  RankNotes notes = Of(1, 2);
  notes.CopyBegins();
  EXPECT_TRUE(notes.Copying());
  notes.Take({notes.Mine(false), notes.Mine(false)});
  EXPECT_FALSE(notes.Copying());
}

TEST_F(RankNotesTest, BytesAreThoseOfAllRanksAndPeaksTheLargest) {
  engine_.totals = {.nvme_read_bytes = 100, .nvme_write_bytes = 20, .evictions = 3};
  RankNotes notes = Of(1, 3);
  const zero::StepNote told = notes.Mine(false);
  engine_.totals.nvme_read_bytes = 7;
  EXPECT_EQ(notes.Now().counters.nvme_read_bytes, 7U) << "no rank has told yet";
  notes.Take({told, told, told});
  const Reading now = notes.Now();
  EXPECT_EQ(now.counters.nvme_read_bytes, 207U) << "its own are those of now";
  EXPECT_EQ(now.counters.nvme_write_bytes, 60U);
  EXPECT_EQ(now.counters.evictions, 9U);
  EXPECT_EQ(now.device_peak, 3_MiB) << "2 MiB of the device, 1 MiB of the library";
  EXPECT_EQ(now.host_peak, 5_MiB);
  EXPECT_THAT(notes.Waited(), ElementsAre(0, 0, 0));
}

TEST_F(RankNotesTest, BetweenTwoStepsNotesAreExchanged) {
  RankNotes notes = Of(0, 2);
  stop_ = true;
  exchanged_ = 2;
  EXPECT_TRUE(notes.Exchange(true).ok());
  EXPECT_TRUE(notes.StopRequested());
  EXPECT_TRUE(notes.CommitWanted(false));
}

}  // namespace
}  // namespace penstock::train
