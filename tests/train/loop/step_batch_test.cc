#include "train/loop/step_batch.h"

#include <gmock/gmock.h>

#include "tests/train/loop/trainer_loop_support.h"

namespace penstock::train {
namespace {

using ::testing::ElementsAre;

/// Ten rows of four tokens each, in order; micro-batches of two rows.
class StepBatchTest : public ::testing::Test {
 protected:
  StepBatchTest() {
    config_.micro_batch_size = 2;
    SetBatch(8);
  }
  void SetBatch(int64_t rows) {
    config_.train_batch_size = rows;
    config_.gradient_accumulation_steps = rows / 2;
  }
  StepBatch Make(const comm::World& world = {}, uint64_t consumed = 0) {
    return {data_,
            {.micro_batch = 2, .micro_batches = 4 / world.size, .sequence = kSequence},
            config_,
            world,
            consumed};
  }
  static std::vector<int32_t> RowsOf(const StepBatch& batch) {
    std::vector<int32_t> rows;
    for (size_t i = 0; i < batch.inputs().size(); i += kSequence) {
      rows.push_back(batch.inputs()[i] / static_cast<int32_t>(kSequence));
    }
    return rows;
  }

  config::Config config_;
  BatchReader data_ = BatchReader::Create(std::make_unique<CountingTokens>(),
                                          DataOrder::kSequential, 0, kSequence, 1000)
                          .value();
};

TEST_F(StepBatchTest, AStepTakesTheRowsBehindThoseOfTheStepBefore) {
  StepBatch batch = Make();
  ASSERT_TRUE(batch.Read().ok());
  EXPECT_EQ(batch.micro_batches(), 4U);
  EXPECT_EQ(batch.tokens(), 32U);
  EXPECT_THAT(RowsOf(batch), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(batch.targets()[5], 6);
  EXPECT_EQ(batch.consumed_samples(), 0U) << "it is not done";
  batch.Done();
  ASSERT_TRUE(batch.Read().ok());
  EXPECT_THAT(RowsOf(batch), ElementsAre(8, 9, 0, 1, 2, 3, 4, 5));
  EXPECT_EQ(batch.consumed_samples(), 8U);
}

TEST_F(StepBatchTest, ARankTakesEverySoManyMicroBatches) {
  StepBatch batch = Make({.size = 2, .rank = 1});
  ASSERT_TRUE(batch.Read().ok());
  EXPECT_EQ(batch.micro_batches(), 2U);
  EXPECT_EQ(batch.tokens(), 32U) << "of all ranks";
  EXPECT_THAT(RowsOf(batch), ElementsAre(2, 3, 6, 7));
  EXPECT_EQ(batch.RowOf(1, 0), 6U);
  EXPECT_THAT(batch.FirstRows(3), ElementsAre(0, 1, 2)) << "of the whole step";
  EXPECT_EQ(batch.FirstRows(100).size(), 8U);
}

TEST_F(StepBatchTest, ItBeginsAfterRowsThatWereTakenOrPassedOver) {
  StepBatch batch = Make({}, 3);
  batch.PassOver(2);
  EXPECT_EQ(batch.consumed_samples(), 19U);
  ASSERT_TRUE(batch.Read().ok());
  EXPECT_EQ(RowsOf(batch).front(), 9);
}

TEST_F(StepBatchTest, ABatchThatGrowsTakesWhatIsItsTurn) {
  config_.rampup = config::RampupConfig{.start = 2, .increment = 2, .samples = 12};
  StepBatch batch = Make();
  std::vector<uint64_t> micro_batches;
  for (int step = 0; step < 5; ++step) {
    ASSERT_TRUE(batch.Read().ok());
    micro_batches.push_back(batch.micro_batches());
    batch.Done();
  }
  EXPECT_THAT(micro_batches, ElementsAre(1, 1, 2, 3, 4));
}

}  // namespace
}  // namespace penstock::train
