// Topologies: what is possible, what they take, and the formula against a table that was measured.
#include "sizing/topology.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "sizing/quantization.h"
#include "sizing/step_work.h"
#include "sizing/topology_rules.h"
#include "tests/sizing/measured_topologies.h"
#include "tests/sizing/support.h"

namespace penstock::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Topology TopologyOf(const MeasuredTopology& row) {
  return {.gpus = row.nodes * 8,
          .data = row.data,
          .tensor = row.tensor,
          .pipeline = row.pipeline,
          .micro_batch = row.micro_batch,
          .global_batch = row.global_batch};
}

/// The rows from the source's line 899 on were trained in bf16.
Cluster ClusterOf(const MeasuredTopology& row) { return {.fp32_accumulation = row.line > 899}; }

std::vector<std::string> RulesOf(const ModelShape& shape, const Topology& topology,
                                 const std::optional<BatchGrowth>& growth = {}) {
  std::vector<std::string> rules;
  for (const TopologyReason& reason : BrokenRules(shape, topology, growth)) {
    rules.push_back(fmt::format("{}: {}", reason.rule, reason.text));
  }
  return rules;
}

TEST(TopologyTest, TheFormulaGivesTheTablesTflops) {
  // 659 says GBS 2048 and has the TFLOPs of 512; 648 has them of the nodes that it names.
  for (const MeasuredTopology& row : kMeasuredTopologies) {
    if (row.seconds == 0) continue;
    const uint64_t batch = row.line == 659 ? 512 : row.global_batch;
    const double flops = WorkOf(Gpt(row.hidden, row.layers), {batch, 2048}).hardware;
    EXPECT_NEAR(TflopsPerGpu(flops, row.seconds, row.nodes * 8), row.tflops, 0.02) << row.line;
  }
}

Bytes MemoryOf(const MeasuredTopology& row) {
  return EstimateMemory(Gpt(row.hidden, row.layers), TopologyOf(row), ClusterOf(row)).total();
}

TEST(TopologyTest, WhatRanOutOfMemoryNeedsMoreThan80GiBButForOneRow) {
  std::set<int> refused;
  std::set<int> fit;
  for (const MeasuredTopology& row : kMeasuredTopologies) {
    if (row.memory_gb < 0) (MemoryOf(row) > 80_GiB ? refused : fit).insert(row.line);
  }
  EXPECT_THAT(refused, ElementsAre(793, 806, 807, 917, 918));
  // Its sizes are within 2 % those of 939, which took 67 GB.
  EXPECT_THAT(fit, ElementsAre(957));
}

TEST(TopologyTest, WhatRanNeedsLessThan80GiBAndAboutWhatWasMeasured) {
  std::vector<double> errors;
  for (const MeasuredTopology& row : kMeasuredTopologies) {
    if (row.seconds == 0 || row.line == 659) continue;
    const Bytes bytes = MemoryOf(row);
    EXPECT_LT(bytes, 80_GiB) << row.line;
    if (row.memory_gb == 0) continue;
    const double ratio = static_cast<double>(bytes.value) / 0x1p30 / row.memory_gb;
    // 634 took less, 56 GB, with twice the micro-batch.
    EXPECT_GT(ratio, row.line == 634 ? 0.7 : 0.85) << row.line;
    EXPECT_LT(ratio, 1.15) << row.line;
    errors.push_back(std::abs(std::log(ratio)));
  }
  std::ranges::sort(errors);
  EXPECT_LT(errors[errors.size() / 2], 0.05);  // the median
}

TEST(TopologyTest, AStepTakesAboutWhatWasMeasured) {
  // The rows with the source's last kernels. Left out are 833 and 847, in which something else was
  // slow: their topologies stand there a second time, and 15 and 40 % faster.
  double squares = 0;
  int count = 0;
  for (const MeasuredTopology& row : kMeasuredTopologies) {
    if (row.seconds == 0 || row.line < 779 || row.line == 833 || row.line == 847) continue;
    const double estimated =
        EstimateTime(Gpt(row.hidden, row.layers), TopologyOf(row), ClusterOf(row)).total();
    const double error = std::log(estimated / row.seconds);
    EXPECT_LT(std::abs(error), 0.25) << row.line << ": " << estimated << " for " << row.seconds;
    squares += error * error;
    ++count;
  }
  EXPECT_LT(std::sqrt(squares / count), 0.08);
}

TEST(TopologyTest, MoreGpusAndFasterOnesTakeLessTime) {
  const ModelShape shape = Gpt(14336, 70);
  const Topology topology{
      .gpus = 384, .data = 8, .tensor = 4, .pipeline = 12, .micro_batch = 2, .global_batch = 2048};
  const double seconds = EstimateTime(shape, topology, {}).total();
  EXPECT_LT(EstimateTime(shape, topology, {.matrix_tflops = 480}).total(), seconds);
  EXPECT_LT(EstimateTime(shape, topology, {.tensor_gbps = 100}).total(), seconds);
  EXPECT_LT(EstimateTime(shape, topology, {.network_gbps = 8}).total(), seconds);
  Topology twice = topology;
  twice.gpus = 768;
  twice.data = 16;
  EXPECT_LT(EstimateTime(shape, twice, {}).total(), seconds);
  EXPECT_GT(EstimateTime(shape, twice, {}).total(), seconds / 2);
}

TEST(TopologyTest, OneGpuComputesAndSendsNothing) {
  const ModelShape shape = Gpt(1024, 24, 50257);
  const Topology topology{.global_batch = 4};
  const TopologyTime time = EstimateTime(shape, topology, {.matrix_tflops = 100});
  EXPECT_EQ(time.tensor_s, 0);
  EXPECT_EQ(time.data_s, 0);
  const double speed = 100e12 * WaveEfficiency(shape, {});
  EXPECT_NEAR(time.compute_s, WorkOf(shape, {4, 2048}).hardware / speed, 1e-9);
}

TEST(TopologyTest, StagesAreEvenWithEmbeddingsAsLayers) {
  for (const auto& [layers, pipeline] : std::vector<std::pair<uint64_t, uint64_t>>{
           {106, 12}, {100, 6}, {82, 12}, {94, 12}, {70, 12}, {72, 12}, {72, 6}, {5, 1}}) {
    EXPECT_TRUE(SplitLayers(layers, pipeline).even) << layers << " / " << pipeline;
  }
  EXPECT_EQ(SplitLayers(70, 12).end_layers, 5);
  EXPECT_EQ(SplitLayers(70, 12).inner_layers, 6);
  EXPECT_FALSE(SplitLayers(78, 12).even);
  EXPECT_EQ(SplitLayers(24, 2).inner_layers, 12) << "two stages are both ends";
  EXPECT_EQ(SplitLayers(24, 2).end_layers, 12);
  EXPECT_TRUE(SplitLayers(24, 2).even);
  const Topology topology{.gpus = 12, .pipeline = 12, .global_batch = 100};
  EXPECT_THAT(TopologyWarnings(Gpt(12288, 78), topology, {}),
              ElementsAre("78 layers over PP 12: 11 stages of 7, one of 1"));
  EXPECT_THAT(TopologyWarnings(Gpt(12288, 106), topology, {}), IsEmpty());
  const Topology ten{.gpus = 10, .pipeline = 10, .global_batch = 100};
  EXPECT_THAT(TopologyWarnings(Gpt(12288, 11), ten, {}),
              ElementsAre("11 layers over PP 10: 5 stages of 2, one of 1, 4 of none"));
  EXPECT_THAT(TopologyWarnings(Gpt(12288, 72), ten, {}),
              ElementsAre("72 layers over PP 10: 9 stages of 8, 1 of none"));
}

TEST(TopologyTest, EachRuleHasItsReason) {
  ModelShape shape = Gpt(13824, 78);
  shape.heads = 108;
  const Topology good{
      .gpus = 384, .data = 8, .tensor = 4, .pipeline = 12, .micro_batch = 2, .global_batch = 2048};
  EXPECT_THAT(RulesOf(shape, good), IsEmpty());
  Topology other = good;
  other.gpus = 320;
  EXPECT_THAT(RulesOf(shape, other),
              ElementsAre("gpus: DP·TP·PP = 8·4·12 = 384, but there are 320 GPUs"));
  other = good;
  other.global_batch = 2040;
  EXPECT_THAT(RulesOf(shape, other),
              ElementsAre("batch: GBS 2040 is no multiple of DP·MBS = 8·2 = 16"));
  other = good;
  other.tensor = 8;
  other.pipeline = 6;
  EXPECT_THAT(RulesOf(shape, other), ElementsAre("heads: TP 8 does not divide 108 heads"));
  other = {.gpus = 160, .tensor = 5, .pipeline = 32, .global_batch = 8};
  shape.heads = 0;
  shape.layers = 30;
  EXPECT_THAT(RulesOf(shape, other), ElementsAre("width: TP 5 does not divide h = 13824",
                                                 "layers: PP 32 is more than 30 layers"));
}

TEST(TopologyTest, ARampUpLeavesOnlyWhatDividesEachBatch) {
  // The source's candidates for a ramp-up in increments of 32, with GBS near 2048.
  struct Candidate {
    uint64_t data, pipeline, nodes, batch;
    bool possible;
  };
  for (const Candidate& c : std::vector<Candidate>{{12, 4, 48, 2040, false},
                                                   {8, 6, 48, 2048, true},
                                                   {6, 8, 48, 2046, false},
                                                   {4, 10, 40, 2048, true},
                                                   {4, 12, 48, 2048, true},
                                                   {4, 11, 44, 2048, true}}) {
    const Topology topology{.gpus = c.nodes * 8,
                            .data = c.data,
                            .tensor = 8,
                            .pipeline = c.pipeline,
                            .global_batch = c.batch};
    EXPECT_EQ(BrokenRules(topology, BatchGrowth{32, 32, 5'000'000}).empty(), c.possible)
        << c.data << " " << c.pipeline;
  }
}

TEST(TopologyTest, AnIncrementOf32Leaves32OverDpForAMicroBatch) {
  for (const uint64_t data : {1, 2, 4, 8}) {
    for (uint64_t micro_batch = 1; micro_batch <= 64; micro_batch *= 2) {
      EXPECT_EQ(!FirstUnevenBatch({32, 32, 1000}, 2048, data * micro_batch).has_value(),
                micro_batch <= 32 / data);
    }
  }
  EXPECT_EQ(FirstUnevenBatch({16, 16, 1000}, 2048, 8 * 4), 16);
  EXPECT_EQ(FirstUnevenBatch({32, 16, 1000}, 2048, 8 * 4), 48);
  EXPECT_EQ(FirstUnevenBatch({16, 100, 1000}, 2048, 1), 2048);
}

TEST(TopologyTest, AFullPipelineTakesPpMbsDpSamples) {
  Topology topology{
      .gpus = 384, .data = 8, .tensor = 4, .pipeline = 12, .micro_batch = 2, .global_batch = 16};
  EXPECT_THAT(TopologyWarnings(Gpt(14336, 70), topology, {}),
              ElementsAre("the pipeline is never full: it takes GBS 192 (PP·MBS·DP)"));
  topology.global_batch = 192;
  EXPECT_THAT(TopologyWarnings(Gpt(14336, 70), topology, {}), IsEmpty());
  topology = {.gpus = 16, .tensor = 16, .global_batch = 2};
  EXPECT_THAT(
      TopologyWarnings(Gpt(16384, 70), topology, {}),
      ElementsAre("TP 16 spans nodes of 8 GPUs: all-reduces of every layer cross the network"));
}

}  // namespace
}  // namespace penstock::train
