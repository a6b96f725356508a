#include "run/observers/step_spans.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/run/observers/support.h"
#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

TEST(StepSpansTest, EachStepIsASpanOfTheTimeThatItsRowIsOf) {
  const TempFolder folder;
  const std::unique_ptr<Trace> trace = Trace::Create(folder.Path("trace.json")).value();
  StepSpans spans(*trace);
  for (const uint64_t step : {1, 2}) {
    const StepRow row = RowOfStep(step);
    ASSERT_TRUE(spans.AfterRow(Closed(row)).ok());
  }
  trace->Keep();
  ASSERT_TRUE(trace->Finish().ok());
  std::vector<std::string> names;
  double next = 0;
  const nlohmann::json events = nlohmann::json::parse(folder.Read("trace.json"));
  for (const nlohmann::json& event : events) {
    if (event.at("ph") != "X") continue;
    names.push_back(event.at("name"));
    EXPECT_EQ(event.at("dur"), 1e6);
    if (names.size() > 1) {
      EXPECT_DOUBLE_EQ(event.at("ts").get<double>(), next);
    }
    next = event.at("ts").get<double>() + 1e6;
  }
  EXPECT_THAT(names, ::testing::ElementsAre("step 1", "step 2"));
}

}  // namespace
}  // namespace penstock::train
