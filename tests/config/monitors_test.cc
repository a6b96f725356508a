// The monitors of a configuration.
#include <gmock/gmock.h>

#include "config/config.h"
#include "config/to_json.h"
#include "tests/config/config_test_util.h"

namespace penstock::config {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(MonitorsTest, TheCsvMonitorIsOffUnlessItIsEnabled) {
  EXPECT_FALSE(Good(WithBatch("")).csv_monitor);
  EXPECT_FALSE(Good(WithBatch(R"("csv_monitor": {"job_name": "x"})")).csv_monitor);
  EXPECT_FALSE(Good(WithBatch("")).wall_clock_breakdown);
}

TEST(MonitorsTest, TheCsvMonitorHasDeepSpeedsDefaults) {
  const Config config = Good(WithBatch(R"("csv_monitor": {"enabled": true, "output_path": null})"));
  ASSERT_TRUE(config.csv_monitor);
  EXPECT_EQ(config.csv_monitor->output_path, "");
  EXPECT_EQ(config.csv_monitor->job_name, "DeepSpeedJobName");
}

TEST(MonitorsTest, WhatIsReadIsWrittenAsItWas) {
  const Config config = Good(WithBatch(
      R"("csv_monitor": {"enabled": true, "output_path": "/a b", "job_name": "c"},
         "wall_clock_breakdown": true)"));
  EXPECT_THAT(config.superseded, IsEmpty());
  const Config again = Good(ConfigToJson(config));
  ASSERT_TRUE(again.csv_monitor);
  EXPECT_EQ(again.csv_monitor->output_path, "/a b");
  EXPECT_EQ(again.csv_monitor->job_name, "c");
  EXPECT_TRUE(again.wall_clock_breakdown);
}

TEST(MonitorsTest, WhatIsNoKeyOfAMonitorIsRefused) {
  EXPECT_THAT(Refused(WithBatch(R"("csv_monitor": {"enable": true})")),
              HasSubstr("unknown key \"csv_monitor.enable\"; did you mean"));
  EXPECT_THAT(Refused(WithBatch(R"("csv_monitor": {"job_name": 3})")),
              HasSubstr("csv_monitor.job_name: expected"));
}

}  // namespace
}  // namespace penstock::config
