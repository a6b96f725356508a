#include "tools/plot/line_chart.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string_view>

#include "tools/plot/axis.h"

namespace penstock::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();

std::vector<std::string> TextsOf(const std::vector<Tick>& ticks) {
  std::vector<std::string> texts;
  for (const Tick& tick : ticks) texts.push_back(tick.text);
  return texts;
}

size_t CountOf(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

Chart ChartOf(std::vector<ChartPoint> points, AxisScale scale = AxisScale::kLinear) {
  ChartPanel panel{.title = "Loss", .unit = "nats", .scale = scale, .if_empty = "no rows"};
  panel.lines.push_back({.name = "loss", .color = {{1, 2, 3}}, .points = std::move(points)});
  return {.title = "A & B", .subtitle = "of a test", .x_title = "step", .panels = {panel}};
}

TEST(AxisTest, TicksAreRound) {
  EXPECT_THAT(TextsOf(Axis(AxisScale::kLinear, 2.3, 5.6).Ticks(5)), ElementsAre("3", "4", "5"));
  EXPECT_THAT(TextsOf(Axis(AxisScale::kLinear, 0, 500).Ticks(8)),
              ElementsAre("0", "100", "200", "300", "400", "500"));
  EXPECT_THAT(TextsOf(Axis(AxisScale::kLog10, 0.02, 3000).Ticks(5)),
              ElementsAre("0.1", "1", "10", "100", "1000"));
  EXPECT_THAT(TextsOf(Axis(AxisScale::kLog2, 1, 65536).Ticks(5)),
              ElementsAre("2^0", "2^3", "2^6", "2^9", "2^12", "2^15"));
  EXPECT_THAT(TextsOf(Axis(AxisScale::kLog10, 1, 4).Ticks(5)), ElementsAre("1", "2", "3", "4"));
}

TEST(AxisTest, PlacesRiseWithValuesAndKeepOffTheEnds) {
  for (const AxisScale scale : {AxisScale::kLinear, AxisScale::kLog10, AxisScale::kLog2}) {
    const Axis axis(scale, 1, 100);
    EXPECT_GT(axis.Place(1), 0);
    EXPECT_LT(axis.Place(1), axis.Place(10));
    EXPECT_LT(axis.Place(10), axis.Place(100));
    EXPECT_LT(axis.Place(100), 1);
  }
}

TEST(AxisTest, AConstantRunsThroughTheMiddle) {
  for (const double value : {1.0, 65536.0, 1e-30, 1e30}) {
    for (const AxisScale scale : {AxisScale::kLinear, AxisScale::kLog2}) {
      EXPECT_NEAR(Axis(scale, value, value).Place(value), 0.5, 1e-9) << value;
    }
  }
}

TEST(AxisTest, WithoutValuesThereIsStillAnAxis) {
  for (const AxisScale scale : {AxisScale::kLinear, AxisScale::kLog10, AxisScale::kLog2}) {
    const Axis axis(scale, kInfinite, -kInfinite);
    EXPECT_FALSE(axis.Has(kNan));
    EXPECT_FALSE(axis.Has(kInfinite));
    EXPECT_LE(axis.Ticks(5).size(), 12U);
  }
  EXPECT_FALSE(Axis(AxisScale::kLog10, 1, 2).Has(0));
  EXPECT_TRUE(Axis(AxisScale::kLinear, 1, 2).Has(0));
}

TEST(LineChartTest, HasTitlesUnitsAndLegend) {
  const std::string svg = DrawChart(ChartOf({{1, 5}, {2, 4}, {3, 3}}));
  EXPECT_THAT(svg, HasSubstr("A &amp; B"));
  for (const char* text : {">of a test<", ">step<", ">Loss<", ">nats<", ">loss<"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  EXPECT_EQ(CountOf(svg, "class=\"line\""), 1U);
  EXPECT_EQ(CountOf(svg, "class=\"key\""), 1U);
  EXPECT_THAT(svg, Not(HasSubstr("no rows")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(LineChartTest, ALineBreaksWhereTheAxisHasNoPlace) {
  const std::string svg = DrawChart(ChartOf({{1, 5}, {2, 4}, {3, kNan}, {4, 4}, {5, 3}}));
  const size_t path = svg.find("class=\"line\"");
  EXPECT_EQ(CountOf(svg.substr(path, svg.find('>', path) - path), "M"), 2U);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  const std::string alone = DrawChart(ChartOf({{1, kNan}, {2, 4}, {3, kNan}}));
  EXPECT_EQ(CountOf(alone, "<circle"), 1U);
}

TEST(LineChartTest, APanelWithoutPointsSaysWhy) {
  EXPECT_THAT(DrawChart(ChartOf({})), HasSubstr("no rows"));
  EXPECT_THAT(DrawChart(ChartOf({{1, kNan}})), HasSubstr("no rows"));
  EXPECT_THAT(DrawChart(ChartOf({{1, 0}}, AxisScale::kLog10)), HasSubstr("no rows"));
}

TEST(LineChartTest, ALongLineIsThinnedAndKeepsItsPeaks) {
  std::vector<ChartPoint> points;
  for (int i = 0; i < 200000; ++i)
    points.push_back({static_cast<double>(i), i == 77777 ? 1000.0 : 1.0});
  const std::string svg = DrawChart(ChartOf(points));
  EXPECT_LT(svg.size(), 100000U);
  const Axis y(AxisScale::kLinear, 1, 1000);
  EXPECT_THAT(svg, HasSubstr(fmt::format(" {:.1f}L", 92 + 150 * (1 - y.Place(1000)))));
}

TEST(LineChartTest, MarksHaveTheirLineAndLimitsTheirText) {
  Chart chart = ChartOf({{1, 5}, {2, 4}});
  chart.panels[0].marks = {{.name = "report", .color = {{9, 9, 9}}, .marks = {{2, "a <b>"}}}};
  chart.panels[0].limits = {{8, "the end"}};
  const std::string svg = DrawChart(chart);
  EXPECT_THAT(svg, HasSubstr("<title>a &lt;b&gt;</title>"));
  EXPECT_THAT(svg, HasSubstr("report (1)"));
  EXPECT_THAT(svg, HasSubstr(">the end<"));
  EXPECT_EQ(CountOf(svg, "class=\"limit\""), 1U);
}

TEST(LineChartTest, OfManyLinesTheLegendHasThree) {
  Chart chart = ChartOf({{1, 5}, {2, 4}});
  chart.panels[0].lines.resize(32, chart.panels[0].lines[0]);
  EXPECT_EQ(CountOf(DrawChart(chart), "class=\"key\""), 3U);
}

}  // namespace
}  // namespace penstock::train
