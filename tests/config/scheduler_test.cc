// The scheduler of a configuration: OneCycle and LRRangeTest, and what is refused of them.
#include <gmock/gmock.h>

#include "config/config.h"
#include "config/to_json.h"
#include "tests/config/config_test_util.h"

namespace penstock::config {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Section(const std::string& type, const std::string& params) {
  return WithBatch(R"("scheduler": {"type": ")" + type + R"(", "params": {)" + params + "}}");
}

SchedulerConfig Scheduler(const std::string& type, const std::string& params) {
  return Good(Section(type, params)).scheduler;
}

TEST(SchedulerTest, OneCycleHasDeepSpeedsDefaults) {
  const SchedulerConfig scheduler =
      Scheduler("OneCycle", R"("cycle_min_lr": 0.25, "cycle_max_lr": 0.5)");
  EXPECT_EQ(scheduler.type, SchedulerType::kOneCycle);
  const OneCycle& cycle = scheduler.one_cycle;
  EXPECT_EQ(cycle.min_lr, 0.25);
  EXPECT_EQ(cycle.max_lr, 0.5);
  EXPECT_EQ(cycle.decay_lr_rate, 0);
  EXPECT_EQ(cycle.first_step_size, 2000);
  EXPECT_FALSE(cycle.second_step_size);
  EXPECT_EQ(cycle.first_stair_count, 0);
  EXPECT_FALSE(cycle.second_stair_count);
  EXPECT_EQ(cycle.decay_step_size, 0);
  EXPECT_TRUE(cycle.momentum);
  EXPECT_EQ(cycle.min_mom, 0.8);
  EXPECT_EQ(cycle.max_mom, 0.9);
  EXPECT_EQ(cycle.decay_mom_rate, 0);
}

TEST(SchedulerTest, TheRangeTestHasDeepSpeedsDefaults) {
  const SchedulerConfig scheduler = Scheduler("LRRangeTest", "");
  EXPECT_EQ(scheduler.type, SchedulerType::kLrRangeTest);
  EXPECT_EQ(scheduler.range_test.min_lr, 1e-3);
  EXPECT_EQ(scheduler.range_test.step_size, 2000);
  EXPECT_EQ(scheduler.range_test.step_rate, 1);
  EXPECT_FALSE(scheduler.range_test.staircase);
}

TEST(SchedulerTest, EveryKeyIsReadAndWrittenAsItWas) {
  const std::string cycle = Section(
      "OneCycle",
      R"("cycle_min_lr": 0.1, "cycle_max_lr": 0.2, "decay_lr_rate": 0.3, "cycle_first_step_size": 4,
         "cycle_second_step_size": 5, "cycle_first_stair_count": 6, "cycle_second_stair_count": 7,
         "decay_step_size": 8, "cycle_momentum": false, "cycle_min_mom": 0.25,
         "cycle_max_mom": 0.75, "decay_mom_rate": -0.125, "last_batch_iteration": -1)");
  const std::string range =
      Section("LRRangeTest", R"("lr_range_test_min_lr": 0.5, "lr_range_test_step_size": 6,
                        "lr_range_test_step_rate": 7, "lr_range_test_staircase": true)");
  for (const std::string& text : {cycle, range}) {
    const std::string json = ConfigToJson(Good(text));
    const Config again = Good(json);
    EXPECT_EQ(ConfigToJson(again), json);
    EXPECT_THAT(again.superseded, IsEmpty());
  }
  const OneCycle read = Good(ConfigToJson(Good(cycle))).scheduler.one_cycle;
  EXPECT_EQ(read.min_lr, 0.1);
  EXPECT_EQ(read.max_lr, 0.2);
  EXPECT_EQ(read.decay_lr_rate, 0.3);
  EXPECT_EQ(read.first_step_size, 4);
  EXPECT_EQ(read.second_step_size, 5);
  EXPECT_EQ(read.first_stair_count, 6);
  EXPECT_EQ(read.second_stair_count, 7);
  EXPECT_EQ(read.decay_step_size, 8);
  EXPECT_FALSE(read.momentum);
  EXPECT_EQ(read.min_mom, 0.25);
  EXPECT_EQ(read.max_mom, 0.75);
  EXPECT_EQ(read.decay_mom_rate, -0.125);
  const LrRangeTest test = Good(ConfigToJson(Good(range))).scheduler.range_test;
  EXPECT_EQ(test.min_lr, 0.5);
  EXPECT_EQ(test.step_size, 6);
  EXPECT_EQ(test.step_rate, 7);
  EXPECT_TRUE(test.staircase);
}

TEST(SchedulerTest, WhatCannotBeIsRefused) {
  const std::tuple<const char*, const char*, const char*> kCases[] = {
      {"OneCycle", R"("cycle_max_lr": 1)",
       "scheduler.params.cycle_min_lr: missing, and it has no default; give the rate at the start"},
      {"OneCycle", R"("cycle_min_lr": 1, "cycle_max_lr": "auto")",
       "scheduler.params.cycle_max_lr: missing, and it has no default"},
      {"OneCycle", R"("cycle_first_step_size": 0)", "cycle_first_step_size: 0 is not an integer"},
      {"OneCycle", R"("cycle_max_mom": 1)", "scheduler.params.cycle_max_mom: 1 is not in [0, "},
      {"OneCycle", R"("cycle_min_lr": [0.1, 0.2])", "scheduler.params.cycle_min_lr: expected"},
      {"OneCycle", R"("warmup_num_steps": 3)", "unknown key \"scheduler.params.warmup_num_steps\""},
      {"LRRangeTest", R"("lr_range_test_step_size": 0)", "step_size: 0 is not an integer"},
      {"LRRangeTest", R"("last_batch_iteration": 7)", "last_batch_iteration: 7 is not implemented"},
      {"CosineAnnealingLR", "", "\"OneCycle\" or \"LRRangeTest\", or to null"},
  };
  for (const auto& [type, params, expected] : kCases) {
    EXPECT_THAT(Refused(Section(type, params)), HasSubstr(expected));
  }
}

}  // namespace
}  // namespace penstock::config
