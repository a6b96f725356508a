// What a tuning hands out: table, plot, configuration fragment.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "tests/train/tune/support.h"
#include "tools/plot/svg.h"
#include "train/tune/config.h"
#include "train/tune/plot.h"

namespace penstock::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

size_t Count(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// The line of `text` that begins with `start`.
std::string LineOf(const std::string& text, const std::string& start) {
  const size_t at = text.find("\n" + start);
  return at == text.npos ? "" : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
}

TEST(Table, HasARowForEachConfigurationAndMarksTheChoice) {
  const TuneReport report = Report();
  const std::string table = TableText(report.grid, 3, 5);
  EXPECT_EQ(Count(table, "\n"), report.grid.size() + 1);
  EXPECT_EQ(Count(table, "\n^ "), 1U);
  EXPECT_EQ(Count(table, "\n> "), 1U);
  EXPECT_EQ(Count(TableText(report.grid, 5, 5), "\n>^ "), 1U);
}

TEST(Table, HasSpeedsWithSpreadLatenciesAndCpuTime) {
  PointSummary row = Row(256_KiB, 16, 2.345);
  row.directions[1] = {.gbps = 0.85,
                       .gbps_min = 0.8,
                       .gbps_max = 3.1,
                       .median_us = 1500,
                       .p99_us = 22250,
                       .cpu_s_per_gb = 0.0625};
  const std::string table = TableText(std::vector{row}, 1, 1);
  EXPECT_THAT(table,
              AllOf(HasSubstr("io_uring"), HasSubstr("256 KiB"), HasSubstr("2.35 (2.35-2.35)"),
                    HasSubstr("0.85 (0.80-3.10)"), HasSubstr("1.50/22.25"), HasSubstr("0.062")));
}

TEST(Table, SaysWhyAnEngineIsMissing) {
  EXPECT_THAT(ToText(Report()), HasSubstr("not measured: the kernel has no libaio"));
}

TEST(Text, HasCeilingRecommendationAndBytesWritten) {
  const TuneReport report = Report();
  const std::string text = ToText(report);
  EXPECT_THAT(LineOf(text, "Ceiling:"), HasSubstr("2.00 GB/s"));
  // 4,000,000 bytes in flight are enough for 2 GB/s; of what has 4 MiB, the smallest depth.
  EXPECT_THAT(LineOf(text, "Recommended:"), AllOf(HasSubstr("4 MiB x 1:"), HasSubstr("100.0 %")));
  EXPECT_THAT(LineOf(text, "Written in all:"), AllOf(HasSubstr("53687091200"), HasSubstr("3:20")));
  EXPECT_THAT(LineOf(text, "Left out"), HasSubstr("16 MiB x 128"));
}

TEST(Text, SaysHowManyRoundsThereWere) {
  TuneReport report = Report();
  for (PointSummary& row : report.grid) row.round_gbps.resize(5, 1);
  EXPECT_THAT(ToText(report), HasSubstr(", 5 rounds\n"));
  report.grid[3].round_gbps.resize(4);
  EXPECT_THAT(ToText(report), HasSubstr(", 4 to 5 of 5 rounds\n"));
  EXPECT_THAT(PlotSvg(report), HasSubstr("the median of 4 to 5 of 5 rounds"));
}

TEST(Text, SaysOnceWhetherTheBuffersWereRegistered) {
  TuneReport report = Report();
  EXPECT_EQ(Count(ToText(report), "buffers are"), 1U);
  EXPECT_THAT(ToText(report), HasSubstr("\naio buffers are registered: 64.0 MiB"));
  report.grid[7].registration = "aio buffers are not registered: no memory";
  EXPECT_EQ(Count(ToText(report), "buffers are"), 2U);
}

TEST(Text, WarnsWhereTheRoundsDisagree) {
  TuneReport report = Report();
  EXPECT_THAT(ToText(report), Not(HasSubstr("throttled")));
  for (PointSummary& row : report.grid) {
    for (DirectionSummary& direction : row.directions) direction.gbps_max = direction.gbps * 2;
  }
  EXPECT_THAT(ToText(report), AllOf(HasSubstr("differs by 100 %"), HasSubstr("throttled")));
}

/// Whether tags nest and close, attributes are quoted, and no bare & or < is in the text. Names the
/// first mistake.
std::string XmlMistake(std::string_view text) {
  std::vector<std::string> open;
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '&') {
      const std::string_view rest = text.substr(at, 6);
      if (!rest.starts_with("&amp;") && !rest.starts_with("&lt;") && !rest.starts_with("&gt;") &&
          !rest.starts_with("&quot;")) {
        return fmt::format("bare & at {}", at);
      }
    }
    if (text[at] != '<') {
      ++at;
      continue;
    }
    const size_t end = text.find('>', at);
    if (end == text.npos) return fmt::format("tag without end at {}", at);
    const std::string tag(text.substr(at + 1, end - at - 1));
    at = end + 1;
    if (tag.find('<') != tag.npos || Count(tag, "\"") % 2 != 0) return "broken tag " + tag;
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag.front() == '/') {
      if (open.empty() || "/" + open.back() != tag) return "unexpected <" + tag + ">";
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
  }
  return open.empty() ? "" : open.front() + " is not closed";
}

TEST(Plot, IsWellFormedXmlForAnyFolderName) {
  EXPECT_EQ(XmlMistake(PlotSvg(Report())), "");
  EXPECT_NE(XmlMistake("<a><b></a>"), "");
  EXPECT_NE(XmlMistake("<a>&</a>"), "");
}

TEST(Plot, HasOneCellForEachConfigurationAndDirection) {
  TuneReport report = Report();
  const std::string svg = PlotSvg(report);
  EXPECT_EQ(Count(svg, "class=\"cell\""), 3 * report.grid.size());
  // and one in the legend
  EXPECT_EQ(Count(svg, "class=\"left-out\""), 3 * report.plan.left_out.size() + 1);
  report.grid[4].round_gbps.clear();
  EXPECT_EQ(Count(PlotSvg(report), "class=\"cell\""), 3 * (report.grid.size() - 1));
}

TEST(Plot, NoTwoCellsLieOnEachOther) {
  const std::string svg = PlotSvg(Report());
  std::set<std::string> places;
  size_t cells = 0;
  for (size_t at = svg.find("<rect"); at != svg.npos; at = svg.find("<rect", at + 1)) {
    const std::string tag = svg.substr(at, svg.find('>', at) - at);
    if (tag.find("class=\"cell\"") == tag.npos && tag.find("class=\"left-out\"") == tag.npos)
      continue;
    ++cells;
    places.insert(tag.substr(0, tag.find("width")));
  }
  EXPECT_EQ(places.size(), cells);
}

TEST(Plot, MarksCeilingAndRecommendationInEachMapAndExplainsThem) {
  const std::string svg = PlotSvg(Report());
  EXPECT_EQ(Count(svg, "class=\"recommended\""), 4U);  // three maps and the legend
  EXPECT_EQ(Count(svg, "class=\"ceiling\""), 4U);
  EXPECT_THAT(svg, AllOf(HasSubstr("Recommended: 4 MiB x 1"), HasSubstr("Ceiling: "),
                         HasSubstr("2025-01-31"), HasSubstr("io_uring"), HasSubstr("4.00 GiB"),
                         HasSubstr("/mnt/&lt;nvme&gt; &amp; &quot;co&quot;")));
}

TEST(Plot, LoadsAndRunsNothing) {
  const std::string svg = PlotSvg(Report());
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_THAT(svg, Not(HasSubstr("href")));
  EXPECT_THAT(svg, Not(HasSubstr("@import")));
}

TEST(ScaleColor, GetsDarkerStepByStepAndItsTextCanBeRead) {
  constexpr Color kWhite = {{255, 255, 255}};
  double last = 1;
  for (int i = 0; i <= 100; ++i) {
    const Color color = ScaleColor(i / 100.0);
    const double darkness = Contrast(color, kWhite);
    EXPECT_GE(darkness, last) << i;
    last = darkness;
    EXPECT_GT(Contrast(color, TextColor(color)), 4.5) << i;
  }
  EXPECT_EQ(ScaleColor(-1).Hex(), ScaleColor(0).Hex());
  EXPECT_EQ(ScaleColor(2).Hex(), ScaleColor(1).Hex());
}

TEST(Contrast, IsThatOfWcag) {
  EXPECT_NEAR(Contrast({{0, 0, 0}}, {{255, 255, 255}}), 21, 1e-9);
  EXPECT_NEAR(Contrast({{255, 255, 255}}, {{119, 119, 119}}), 4.48, 0.005);
}

TEST(ConfigFragment, IsUnderstoodByTheConfigReader) {
  const TunePoint point = {.engine = aio::EngineKind::kThreads,
                           .block_size = 256_KiB,
                           .queue_depth = 64,
                           .thread_count = 16};
  // A first file that uses DeepSpeed's newer name of the number of threads, as its manual does.
  const Result<config::Config> config =
      config::ParseConfig({{"ds.json", R"({"train_micro_batch_size_per_gpu": 1,
                                         "aio": {"intra_op_parallelism": 2, "queue_depth": 8},
                                         "penstock": {"overlap": false}})"},
                           {"tune.json", ConfigFragment({.point = point})}},
                          1);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->aio.kind, aio::EngineKind::kThreads);
  EXPECT_EQ(config->aio.block_size, 256_KiB);
  EXPECT_EQ(config->aio.queue_depth, 64);
  EXPECT_EQ(config->aio.thread_count, 16);
  EXPECT_FALSE(config->overlap);
}

TEST(ConfigFragment, SetsWhatWasMeasuredAfterAnyEarlierFile) {
  const char* others[] = {
      R"({"train_micro_batch_size_per_gpu": 1,
          "aio": {"block_size": 4096, "queue_depth": 1, "num_threads": 9, "single_submit": true,
                  "overlap_events": false},
          "penstock": {"aio": {"engine": "io_uring", "sqpoll": true, "iopoll": true,
                               "registered_buffers": true}}})",
      R"({"train_micro_batch_size_per_gpu": 1,
          "penstock": {"aio": {"engine": "threads", "registered_buffers": false,
                               "simulate": {"read_gbps": 1}}}})"};
  for (const char* other : others) {
    const TunePoint point = MakePoint(aio::EngineKind::kLibaio, 1_MiB, 8);
    const Result<config::Config> config = config::ParseConfig(
        {{"ds.json", other}, {"tune.json", ConfigFragment({.point = point})}}, 1);
    ASSERT_TRUE(config.ok()) << config.error().message;
    const aio::EngineOptions measured;
    EXPECT_EQ(config->aio.kind, aio::EngineKind::kLibaio);
    EXPECT_EQ(config->aio.block_size, 1_MiB);
    EXPECT_EQ(config->aio.queue_depth, 8);
    EXPECT_EQ(config->aio.thread_count, 1);
    EXPECT_EQ(config->aio.single_submit, measured.single_submit);
    EXPECT_EQ(config->aio.overlap_events, measured.overlap_events);
    EXPECT_FALSE(config->aio.sqpoll);
    EXPECT_FALSE(config->aio.iopoll);
    EXPECT_EQ(config->aio.registered_buffers, aio::Registration::kAuto);
    EXPECT_FALSE(config->aio.simulate.has_value());
  }
}

TEST(ConfigFragment, NamesEachEngineAsTheConfigReaderDoes) {
  for (const aio::EngineKind kind :
       {aio::EngineKind::kUring, aio::EngineKind::kLibaio, aio::EngineKind::kThreads}) {
    const Result<config::Config> config =
        config::ParseConfig({{"ds.json", R"({"train_micro_batch_size_per_gpu": 1})"},
                             {"tune.json", ConfigFragment({.point = MakePoint(kind, 1_MiB, 8)})}},
                            1);
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->aio.kind, kind);
  }
}

TEST(ConfigFragment, HasTheSpeedForPlans) {
  const auto drive_of = [](double read, double write, double both) {
    PointSummary chosen{.point = MakePoint(aio::EngineKind::kUring, 1_MiB, 8)};
    chosen.directions[0].gbps = read;
    chosen.directions[1].gbps = write;
    chosen.directions[2].gbps = both;
    return config::ParseConfig({{"ds.json", R"({"train_micro_batch_size_per_gpu": 1})"},
                                {"tune.json", ConfigFragment(chosen)}},
                               1)
        .value()
        .drive;
  };
  const std::optional<config::DriveSpeed> duplex = drive_of(7, 5, 11);
  ASSERT_TRUE(duplex);
  EXPECT_EQ(duplex->read_gbps, 7);
  EXPECT_EQ(duplex->write_gbps, 5);
  EXPECT_FALSE(duplex->shared);
  const std::optional<config::DriveSpeed> shared = drive_of(3, 2, 2.5);
  ASSERT_TRUE(shared);
  EXPECT_TRUE(shared->shared);
  EXPECT_EQ(shared->read_gbps, 2.5) << "what one way moves in both directions";
  EXPECT_FALSE(drive_of(0, 0, 0)) << "nothing was measured";
}

}  // namespace
}  // namespace penstock::train
