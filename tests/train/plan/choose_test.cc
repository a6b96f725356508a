#include "train/plan/choose.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/train/plan/planned_gpt2.h"

namespace penstock::train {
namespace {

class ChooseTest : public ::testing::Test {
 protected:
  Planning PlanningFor(const MemoryLimits& limits, const MachineSpeed& speed) {
    return [this, limits, speed](const Alternative& setup) {
      return PlanIfFits(gpt2_.Training(setup.config), limits, speed);
    };
  }
  Alternative Given() const { return {.config = gpt2_.config(), .sequence = 32, .ranks = 1}; }

  PlannedGpt2 gpt2_{kAllOnNvme};
  MachineSpeed speed_{
      .cores = 2,
      .layer_flops = 1e11,
      .head_flops = 1e11,
      .update_element = 1e-9,
      .norm_element = 1e-10,
      .drive = sim::DriveSpeed{.read_bytes_a_second = 1e8, .write_bytes_a_second = 1e8}};
};

TEST_F(ChooseTest, WithMemoryForAllTheDriveIsLeftAlone) {
  const std::vector<Choice> choices =
      Choose(Given(), PlanGoal::kSpeed,
             PlanningFor({.device = 1_GiB, .host = 1_GiB, .drive = {}}, speed_))
          .value();
  ASSERT_FALSE(choices.empty());
  EXPECT_NE(choices.front().setup.config.parameter_home, Tier::kNvme) << choices.front().changes;
  EXPECT_EQ(choices.front().plan.step->read_bytes, 0U);
  EXPECT_TRUE(std::ranges::any_of(choices, [](const Choice& c) { return c.changes.empty(); }))
      << "the given setup is one of them";
}

TEST_F(ChooseTest, TheLeastMemoryComesFirst) {
  const std::vector<Choice> choices =
      Choose(Given(), PlanGoal::kMemory,
             PlanningFor({.device = 1_GiB, .host = 1_GiB, .drive = {}}, speed_))
          .value();
  const auto memory = [](const Choice& c) { return c.plan.device_peak() + c.plan.host_peak(); };
  EXPECT_TRUE(std::ranges::is_sorted(choices, {}, memory));
}

TEST_F(ChooseTest, EveryChoiceHasTheSameGlobalBatchAndFits) {
  const MemoryLimits limits = {.device = 4_MiB, .host = 32_MiB, .drive = {}};
  const std::vector<Choice> choices =
      Choose(Given(), PlanGoal::kMemory, PlanningFor(limits, speed_)).value();
  for (const Choice& choice : choices) {
    const config::Config& config = choice.setup.config;
    EXPECT_EQ(config.micro_batch_size * config.gradient_accumulation_steps, 4U) << choice.changes;
    EXPECT_LE(choice.plan.device_peak(), *limits.device);
    EXPECT_LE(choice.plan.host_peak(), *limits.host);
  }
}

TEST_F(ChooseTest, WithoutSpeedsThereIsNoFastest) {
  const auto choices =
      Choose(Given(), PlanGoal::kSpeed,
             PlanningFor({.device = 1_GiB, .host = 1_GiB, .drive = {}}, MachineSpeed()));
  ASSERT_FALSE(choices.ok());
  EXPECT_NE(choices.error().message.find("--device-tflops"), std::string::npos);
}

TEST_F(ChooseTest, WhereNothingFitsNothingIsListed) {
  const Planning planning = PlanningFor({.device = 64_KiB, .host = 64_KiB, .drive = {}}, speed_);
  EXPECT_TRUE(Choose(Given(), PlanGoal::kMemory, planning).value().empty());
}

}  // namespace
}  // namespace penstock::train
