// Tables of topologies: read, enumerated, sorted, printed.
#include "sizing/topology_table.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/sizing/measured_topologies.h"
#include "tests/sizing/support.h"

namespace penstock::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kHead[] = "line,hidden,layers,nodes,DP,TP,PP,MBS,GBS,mem,sec_it,tflops_seed,note\n";

Result<TopologyTable> Parse(const std::string& text, const ModelShape& shape = Gpt(14336, 72)) {
  return ParseTopologyTable(text, "t.csv", shape, {});
}

std::string ParseError(const std::string& text) {
  const Result<TopologyTable> table = Parse(text);
  return table.ok() ? "no error" : table.error().message;
}

/// The source's rows as its file has them.
std::string SourceCsv() {
  std::string csv = kHead;
  for (const MeasuredTopology& row : kMeasuredTopologies) {
    const std::string memory = row.memory_gb < 0    ? "OOM"
                               : row.memory_gb == 0 ? "GB"
                                                    : fmt::format("{}GB", row.memory_gb);
    csv +=
        fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},\n", row.line, row.hidden, row.layers,
                    row.nodes, row.data, row.tensor, row.pipeline, row.micro_batch,
                    row.global_batch, memory, row.seconds == 0 ? "" : std::to_string(row.seconds),
                    row.tflops == 0 ? "x" : std::to_string(row.tflops));
  }
  return csv;
}

TEST(TopologyTableTest, TheSourcesTableIsSortedByTimeAndNotByTflops) {
  const TopologyTable table = Parse(SourceCsv()).value();
  EXPECT_THAT(table.notices, ElementsAre("topologies t.csv: columns without effect: note"));
  ASSERT_EQ(table.rows.size(), kMeasuredTopologies.size());
  const std::vector<JudgedTopology> judged = JudgeTopologies(table.rows, {});
  double last = 0;
  std::set<std::string> refused;
  for (const JudgedTopology& one : judged) {
    if (!one.possible()) refused.insert(one.row.label);
    if (!one.possible()) continue;
    EXPECT_TRUE(refused.empty()) << "a possible one stands behind " << one.row.label;
    EXPECT_GE(*one.seconds, last);
    last = *one.seconds;
  }
  // The product of 648 is not its GPUs; the others ran out of memory.
  EXPECT_THAT(refused, ElementsAre("648", "793", "806", "807", "917", "918", "957"));
  EXPECT_EQ(judged.front().row.label,
            "867");  // GBS 512: the least time, by far not the most TFLOPs
}

TEST(TopologyTableTest, TflopsOfTheTableAreCheckedAgainstTheFormula) {
  const TopologyTable table = Parse(SourceCsv()).value();
  for (const JudgedTopology& one : JudgeTopologies(table.rows, {})) {
    if (one.row.label == "659") {
      EXPECT_THAT(one.warnings, testing::Contains(HasSubstr("157.02 TFLOPs are stated")));
      EXPECT_THAT(one.warnings, testing::Contains(HasSubstr("more than a GPU's 245.00")));
    } else {
      EXPECT_THAT(one.warnings, testing::Not(testing::Contains(HasSubstr("are stated"))))
          << one.row.label;
    }
  }
  const TopologyTable wrong =
      Parse("line,DP,TP,PP,MBS,GBS,sec_it,tflops\n856,8,4,12,2,2048,110.42,146.2\n").value();
  EXPECT_THAT(JudgeTopologies(wrong.rows, {})[0].warnings,
              ElementsAre("146.20 TFLOPs are stated, the formula gives 146.00"));
}

TEST(TopologyTableTest, ColumnsMayBeMissingAndInAnyOrder) {
  const TopologyTable table =
      Parse("\xEF\xBB\xBFgbs,MBS,tp,PP,Dp\r\n2048,2,4,12,8\r\n\r\n64,1,,,2\r\n").value();
  ASSERT_EQ(table.rows.size(), 2);
  EXPECT_EQ(table.rows[0].topology.gpus, 384);
  EXPECT_EQ(table.rows[0].shape->width, 14336);
  EXPECT_EQ(table.rows[0].label, "2");
  EXPECT_FALSE(table.rows[0].seconds.has_value());
  EXPECT_EQ(table.rows[1].topology.product(), 2);
  EXPECT_EQ(table.rows[1].label, "4");
  EXPECT_THAT(table.notices, IsEmpty());
}

TEST(TopologyTableTest, WithoutItsDepthAModelIsNotGuessed) {
  const TopologyTable table = Parse(std::string(kHead) +
                                    "582,14400,,40,4,8,10,1,2048,35GB,221.21,94.39,\n"
                                    "476,,,48,12,8,4,1,2040,47GB,189.06,91.67,\n")
                                  .value();
  EXPECT_FALSE(table.rows[0].shape.has_value());
  EXPECT_EQ(table.rows[1].shape->layers, 72);
  const std::vector<JudgedTopology> judged = JudgeTopologies(table.rows, {});
  EXPECT_TRUE(judged[1].possible());
  EXPECT_EQ(judged[1].hardware_tflops, 0);
  EXPECT_EQ(judged[1].seconds, 221.21);
  EXPECT_NE(TopologiesText(judged).find("221.21*"), std::string::npos);
  EXPECT_EQ(TopologiesJson(judged)[1]["hardware_tflops"], nullptr);
}

TEST(TopologyTableTest, SamplesASecondAreGbsOverTime) {
  const TopologyTable table = Parse(
                                  "DP,TP,PP,MBS,GBS,sec_it\n8,4,12,2,2048,769.99\n"
                                  "8,4,12,2,2048,844.81\n8,4,12,2,2048,430.21\n")
                                  .value();
  const std::vector<JudgedTopology> judged = JudgeTopologies(table.rows, {});
  EXPECT_NEAR(judged[0].samples_per_second, 4.760, 0.0005);
  EXPECT_NEAR(judged[1].samples_per_second, 2.660, 0.0005);
  EXPECT_NEAR(judged[2].samples_per_second, 2.424, 0.0005);
}

TEST(TopologyTableTest, WhatWasMeasuredCountsBeforeAnEstimate) {
  const std::string head = "DP,TP,PP,MBS,GBS,mem,sec_it\n";
  // Estimated are more than 80 GiB in bf16, but it ran.
  const TopologyTable ran = Parse(head +
                                  "16,4,6,4,2048,75GB,117.11\n16,4,6,4,2048,,117.11\n"
                                  "16,4,6,4,2048,,\n16,4,6,4,2048,85GB,117.11\n")
                                .value();
  std::vector<bool> possible;
  for (const TopologyRow& row : ran.rows) {
    possible.push_back(JudgeTopology(row, {.cluster = {.fp32_accumulation = true}}).possible());
  }
  EXPECT_THAT(possible, ElementsAre(true, true, false, false));
}

TEST(TopologyTableTest, EnumeratesEveryProductOnce) {
  const std::vector<TopologyRow> rows = EnumerateTopologies(
      Gpt(14336, 70), {.gpus = 48, .global_batch = 64, .micro_batches = {1, 2}});
  std::set<std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>> seen;
  for (const TopologyRow& row : rows) {
    const Topology& t = row.topology;
    EXPECT_EQ(t.product(), 48);
    EXPECT_TRUE(seen.emplace(t.data, t.tensor, t.pipeline, t.micro_batch).second);
  }
  uint64_t products = 0;
  for (uint64_t a = 1; a <= 48; ++a) {
    for (uint64_t b = 1; b <= 48; ++b) products += 48 % (a * b) == 0 ? 1 : 0;
  }
  EXPECT_EQ(rows.size(), 2 * products);
}

TEST(TopologyTableTest, TheBestOfALargeModelsTopologiesFitsAndFillsItsPipeline) {
  ModelShape shape = Gpt(14336, 70);
  shape.heads = shape.kv_heads = 112;
  shape.head_width = 128;
  const std::vector<JudgedTopology> judged =
      JudgeTopologies(EnumerateTopologies(shape, {.gpus = 384, .global_batch = 2048}),
                      {.cluster = {.fp32_accumulation = true}});
  const JudgedTopology& best = judged.front();
  EXPECT_TRUE(best.possible());
  EXPECT_LE(best.memory->total(), 80_GiB);
  EXPECT_GE(best.row.topology.micro_batches(),
            4.0 * static_cast<double>(best.row.topology.pipeline));
  EXPECT_LE(best.row.topology.tensor, 8);
  // It is about as fast as what that project trained with, which took 104.5 s.
  EXPECT_NEAR(*best.seconds, 95, 10);
  const std::string text = TopologiesText(judged, 3);
  EXPECT_THAT(text, HasSubstr("slower ones\n"));
  EXPECT_THAT(text, HasSubstr("by memory, as "));
  EXPECT_THAT(text, HasSubstr("by heads, as "));
}

TEST(TopologyTableTest, TheTextSaysWhatIsAgainstEachRow) {
  const TopologyTable table =
      Parse(
          "line,nodes,DP,TP,PP,MBS,GBS,mem,sec_it\na,48,8,4,12,2,2048,44GB,110.42\n"
          "b,40,8,8,10,4,2048,,147.04\nc,48,48,8,1,1,2016,OOM,\n")
          .value();
  const std::string text = TopologiesText(JudgeTopologies(table.rows, {}));
  EXPECT_EQ(
      text,
      "1 of 3 topologies are possible; the least time a step first (* measured, GB: 2^30 "
      "bytes, TFLOPs of a GPU without and with recomputation)\n"
      "   DP   TP   PP  MBS    GBS   memory     s/step  TFLOPs  hardware  samples/s\n"
      "    8    4   12    2   2048    44GB*    110.42*  110.03    146.00     18.547  a\n"
      "Not possible: 2\n"
      "  b: DP 8, TP 8, PP 10, MBS 4: DP·TP·PP = 8·8·10 = 640, but there are 320 GPUs\n"
      "  c: DP 48, TP 8, PP 1, MBS 1: it ran out of memory when it was tried; the estimate is "
      "109.8 GiB\n"
      "Heads are not known, so whether TP divides them was not looked at.\n");
}

TEST(TopologyTableTest, TheJsonHasWhatIsKnown) {
  const TopologyTable table =
      Parse("nodes,DP,TP,PP,MBS,GBS,mem,sec_it\n48,8,4,12,2,2048,44GB,110.42\n").value();
  const nlohmann::json row = TopologiesJson(JudgeTopologies(table.rows, {}))[0];
  EXPECT_EQ(row["label"], "2");
  EXPECT_EQ(row["dp"], 8);
  EXPECT_EQ(row["hidden"], 14336);
  EXPECT_EQ(row["memory_bytes"], 44ULL << 30);
  EXPECT_EQ(row["possible"], true);
  EXPECT_EQ(row["step_s"], 110.42);
  EXPECT_NEAR(row["hardware_tflops"].get<double>(), 146.0, 0.02);
}

TEST(TopologyTableTest, SaysWhatIsWrongWithAFile) {
  const std::string head = "DP,TP,PP,MBS,GBS\n";
  EXPECT_EQ(ParseError("DP,TP,PP,GBS\n1,1,1,1\n"),
            "topologies t.csv: the first line has no column \"mbs\"; it needs DP, TP, PP, MBS and "
            "GBS, separated by commas");
  EXPECT_EQ(ParseError("DP,TP,PP,MBS,GBS,dp\n"),
            "topologies t.csv: column \"dp\" is there twice; leave one out");
  EXPECT_EQ(ParseError(head),
            "topologies t.csv: there are no rows; write a header with DP, TP, PP, "
            "MBS and GBS, and a row for each topology");
  EXPECT_EQ(ParseError(""),
            "topologies t.csv: there are no rows; write a header with DP, TP, PP, "
            "MBS and GBS, and a row for each topology");
  EXPECT_EQ(ParseError(head + "1,1,1,1\n"), "topologies t.csv:2: 4 cells, but the header has 5");
  EXPECT_EQ(ParseError(head + "1,1,1,a,1\n"),
            "topologies t.csv:2: mbs: \"a\" is not a whole number from 1 to 4294967296");
  EXPECT_EQ(ParseError(head + "1,0,1,1,1\n"),
            "topologies t.csv:2: tp: \"0\" is not a whole number from 1 to 4294967296");
  EXPECT_EQ(ParseError(head + "1,1,1,1,\n"), "topologies t.csv:2: gbs: is empty");
  EXPECT_EQ(ParseError("DP,TP,PP,MBS,GBS,sec_it\n1,1,1,1,1,fast\n"),
            "topologies t.csv:2: sec_it: \"fast\" is not a number above 0; leave it empty where "
            "there is none");
  EXPECT_EQ(ParseError("DP,TP,PP,MBS,GBS,heads\n1,1,1,1,1,100\n"),
            "topologies t.csv:2: heads: 100 does not divide h = 14336");
  const ModelShape llama = ParseModelShape("llama:h=64,l=2,v=100,i=96,heads=4").value();
  const Result<TopologyTable> other =
      ParseTopologyTable("DP,TP,PP,MBS,GBS,hidden,layers\n1,1,1,1,1,128,2\n", "t.csv", llama, {});
  EXPECT_EQ(other.error().message,
            "topologies t.csv:2: hidden: a llama has more sizes than these; leave the column out, "
            "and name the shape with --model");
}

}  // namespace
}  // namespace penstock::train
