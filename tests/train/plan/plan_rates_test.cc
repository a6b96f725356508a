#include "train/plan/plan_rates.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/train/plan/planned_gpt2.h"

namespace penstock::train {
namespace {

class PlanRatesTest : public ::testing::Test {
 protected:
  RunPlan Plan(const config::Config& config) {
    const MachineSpeed speed = {
        .layer_flops = 1e12,
        .head_flops = 1e12,
        .drive = sim::DriveSpeed{.read_bytes_a_second = 1e8, .write_bytes_a_second = 1e8}};
    return PlanRun(gpt2_.Training(config), {.device = 1_GiB, .host = 1_GiB, .drive = {}}, speed)
        .value();
  }

  PlannedGpt2 gpt2_{kAllOnNvme};
};

TEST_F(PlanRatesTest, ATrainingTakesItsStepsOnAllRanks) {
  const RunPlan plan = Plan(gpt2_.config());
  const PlanRates rates =
      RatesOf(plan, gpt2_.config(), {.ranks = 3, .training_tokens = 1000.0 * 4 * 32});
  ASSERT_TRUE(rates.training);
  EXPECT_EQ(rates.training->steps, 1000U);
  EXPECT_DOUBLE_EQ(rates.training->days, 1000 * *plan.step->step_s / 86400);
  EXPECT_DOUBLE_EQ(rates.training->gpu_hours, 3 * 1000 * *plan.step->step_s / 3600);
  EXPECT_FALSE(RatesOf(plan, gpt2_.config(), {}).training) << "it was not asked for";
}

TEST_F(PlanRatesTest, ADriveIsWrittenToByAllItsRanksAndByCommits) {
  const RunPlan plan = Plan(gpt2_.config());
  const double a_day = 86400 / *plan.step->step_s / 1e12;
  const PlanRates rates =
      RatesOf(plan, gpt2_.config(), {.ranks_of_drive = 2, .rating = DriveRating{600}});
  const auto of_steps = static_cast<double>(plan.step->write_bytes);
  EXPECT_NEAR(rates.wear->terabytes_a_day, 2 * of_steps * a_day, 1e-6);
  EXPECT_NEAR(*rates.wear->days_to_rating, 600 / rates.wear->terabytes_a_day, 1e-6);

  config::Config on_host = gpt2_.config();
  on_host.parameter_home = on_host.optimizer_home = Tier::kHost;
  on_host.nvme_paths.clear();
  on_host.commit_every_seconds = 0;
  EXPECT_FALSE(RatesOf(Plan(on_host), on_host, {}).wear) << "nothing is written";
  on_host.commit_every_steps = 10;
  const RunPlan with_commits = Plan(on_host);
  const auto of_commit = static_cast<double>(with_commits.commit.bytes.value);
  EXPECT_NEAR(RatesOf(with_commits, on_host, {}).wear->terabytes_a_day * *with_commits.step->step_s,
              of_commit / 10 * 86400 / 1e12, 1e-6);
}

TEST_F(PlanRatesTest, ABatchThatGrowsWaitsForTheLink) {
  PlannedGpt2 gpt2(R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1,
                       "gradient_accumulation_steps": 32, "bf16": {"enabled": true},
                       "penstock": {"rampup_batch_size": [2, 62, 100]}})",
                   2);
  PlannedTraining training = gpt2.Training();
  training.world = {.size = 2, .local_size = 1};
  MachineSpeed speed = {.layer_flops = 1e12, .head_flops = 1e12};
  speed.link = sim::LinkSpeed{.bytes_a_second = 1e6};
  const RunPlan plan =
      PlanRun(training, {.device = 1_GiB, .host = 1_GiB, .drive = {}}, speed).value();
  const RampTime ramp = *RatesOf(plan, gpt2.config(), {.ranks = 2}).ramp;
  EXPECT_EQ(ramp.steps, 50U) << "of one micro-batch of each rank";
  const StepEstimate& step = *plan.step;
  const auto weights = static_cast<double>(step.fixed_link_bytes);
  const double gradients = (static_cast<double>(step.link_bytes) - weights) / 32;
  EXPECT_NEAR(ramp.seconds, 50 * (weights + gradients) / 1e6, 1e-6);
}

TEST_F(PlanRatesTest, EachRankHasSimulatedDrivesOfItsOwn) {
  config::Config config = gpt2_.config();
  config.nvme_paths.emplace_back("/var/tmp");
  const RunPlan plan = Plan(config);
  const auto drives = [&] {
    return RatesOf(plan, config, {.ranks_of_drive = 3, .rating = DriveRating{1}}).wear->drives;
  };
  EXPECT_EQ(drives(), 2U);
  config.aio.simulate.emplace();
  EXPECT_EQ(drives(), 6U);
}

TEST_F(PlanRatesTest, RecomputationIsCountedBesides) {
  const PlanRates rates = RatesOf(Plan(gpt2_.config()), gpt2_.config(), {});
  EXPECT_GT(*rates.hardware_tflops, 1.2 * *rates.tflops);
  EXPECT_LT(*rates.hardware_tflops, 4.0 / 3 * *rates.tflops);
}

TEST_F(PlanRatesTest, SmallBatchesOfARampUpWaitForTheDrive) {
  config::Config config = gpt2_.config();
  ASSERT_EQ(config.train_batch_size, 4U);
  config.rampup = config::RampupConfig{.start = 1, .increment = 1, .samples = 100};
  const RunPlan plan = Plan(config);
  const PlanRates rates = RatesOf(plan, config, {});
  ASSERT_TRUE(rates.ramp);
  EXPECT_EQ(rates.ramp->steps, rates.ramp->drive_bound_steps) << "the drive is slow";
  EXPECT_NEAR(rates.ramp->seconds,
              static_cast<double>(rates.ramp->steps) * *plan.step->floors.drive, 1e-9);
  EXPECT_NEAR(static_cast<double>(rates.ramp->hidden_from * 32), *rates.hidden_tokens, 33)
      << "both say from which batch the drive is hidden";
}

}  // namespace
}  // namespace penstock::train
