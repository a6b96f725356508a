#include "train/plan/choose.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "config/to_json.h"
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

/// What fits on more ranks and nowhere else.
Choice OnMoreRanks(const std::string& json) {
  PlannedGpt2 model{json};
  const Planning planning = [&](const Alternative& setup) -> Result<std::optional<RunPlan>> {
    if (setup.ranks < 4) return std::optional<RunPlan>();
    return PlanIfFits(model.Training(setup.config), {}, {});
  };
  const std::vector<Choice> choices =
      ChooseSmaller({.config = model.config(), .sequence = 32, .ranks = 1}, planning).value();
  EXPECT_EQ(choices.size(), 1U);
  return choices.empty() ? Choice() : choices.front();
}

TEST(ChooseSmallerTest, MoreRanksShareTheGlobalBatchIfTheyCan) {
  const auto choice = [](uint64_t micro, uint64_t accumulated) {
    const Choice found = OnMoreRanks(
        fmt::format(R"({{"train_micro_batch_size_per_gpu": {}, "bf16": {{"enabled": true}},
                               "gradient_accumulation_steps": {}}})",
                    micro, accumulated));
    const config::Config& config = found.setup.config;
    EXPECT_EQ(found.setup.ranks, 4U);
    EXPECT_TRUE(config::ParseConfig({{"c", config::ConfigToJson(config)}}, 4).ok());
    EXPECT_EQ(config.train_batch_size,
              4 * config.micro_batch_size * config.gradient_accumulation_steps);
    const bool says = found.changes.find("train_batch_size") != std::string::npos;
    EXPECT_EQ(says, config.train_batch_size != micro * accumulated) << found.changes;
    return config.train_batch_size;
  };
  EXPECT_EQ(choice(1, 8), 8U);
  EXPECT_EQ(choice(4, 1), 4U) << "with smaller micro-batches";
  EXPECT_EQ(choice(6, 2), 12U);
  EXPECT_EQ(choice(1, 1), 4U) << "one row cannot be shared";
  EXPECT_EQ(choice(3, 2), 12U) << "the next that four ranks can share in threes";
}

TEST(ChooseSmallerTest, ABatchThatGrowsIsNotGivenToRanksThatCannotShareAllItsSizes) {
  PlannedGpt2 model{R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1,
                        "bf16": {"enabled": true},
                        "penstock": {"rampup_batch_size": [2, 2, 100]}})"};
  std::vector<uint32_t> tried;
  const Planning planning = [&](const Alternative& setup) -> Result<std::optional<RunPlan>> {
    tried.push_back(setup.ranks);
    return std::optional<RunPlan>();
  };
  ChooseSmaller({.config = model.config(), .sequence = 1, .ranks = 1}, planning).value();
  EXPECT_EQ(tried, std::vector<uint32_t>{2});
}

}  // namespace
}  // namespace penstock::train
