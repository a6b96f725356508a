// FLOPs and TFLOP/s as the sources of docs/sizing.md have them.
#include "sizing/step_work.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "sizing/training_time.h"
#include "tests/sizing/support.h"

namespace penstock::train {
namespace {

double HardwareTflops(uint64_t h, uint64_t l, uint64_t samples, uint64_t gpus, double seconds) {
  return TflopsPerGpu(WorkOf(Gpt(h, l), {samples, 2048}).hardware, seconds, gpus);
}

TEST(StepWorkTest, HardwareTflopsAreTheSourcesWithin002) {
  EXPECT_NEAR(HardwareTflops(14336, 72, 2048, 384, 143.31), 112.49, 0.02);
  EXPECT_NEAR(HardwareTflops(14336, 72, 2048, 384, 123.69), 130.34, 0.02);
  EXPECT_NEAR(HardwareTflops(13824, 78, 2048, 384, 103.51), 156.92, 0.02);
  EXPECT_NEAR(HardwareTflops(14336, 70, 2048, 384, 102.03), 153.68, 0.02);
  EXPECT_NEAR(HardwareTflops(14336, 70, 2048, 384, 121.63), 128.92, 0.02);
  EXPECT_NEAR(HardwareTflops(13824, 78, 512, 384, 35.77), 113.52, 0.02);
}

TEST(StepWorkTest, ModelTflopsLeaveRecomputationOut) {
  const StepWork work = WorkOf(Gpt(14336, 70), {2048, 2048});
  EXPECT_NEAR(TflopsPerGpu(work.model, 102.03, 384), 115.84, 0.02);
  // metrics.jsonl counts 6 N + 12 l h s, which is nearly the same.
  const StepWork counted = MetricsWork(CountedSizesOf(Gpt(14336, 70)), 2048, 2048.0 * 2048);
  EXPECT_NEAR(TflopsPerGpu(counted.model, 102.03, 384), 115.84, 0.05);
  EXPECT_NEAR(TflopsPerGpu(counted.hardware, 102.03, 384), 153.68, 0.05);
}

TEST(StepWorkTest, AnyGpt2HasMegatronsFormula) {
  std::mt19937_64 random(3);
  const auto draw = [&](uint64_t most) { return 1 + random() % most; };
  for (int i = 0; i < 300; ++i) {
    const uint64_t h = draw(20000), l = draw(200), v = draw(300000), s = draw(10000),
                   b = draw(4096);
    const ModelShape shape =
        ParseModelShape(fmt::format("gpt2:h={},l={},v={},s={}", h, l, v, s)).value();
    const auto real = [](uint64_t n) { return static_cast<double>(n); };
    const double common = real(b) * real(s) * real(l) * real(h) * real(h);
    const double scores = 1 + real(s) / (6 * real(h));
    const double words = real(v) / (real(l) * real(h));
    const StepWork work = WorkOf(shape, {b, s});
    EXPECT_NEAR(work.hardware / (96 * common * (scores + words / 16)), 1, 1e-12);
    EXPECT_NEAR(work.model / (72 * common * (scores + words / 12)), 1, 1e-12);
    // All of it but the logits is computed 4 times in place of 3.
    const double logits = 6 * real(b) * real(s) * real(v) * real(h);
    EXPECT_NEAR((work.hardware - logits) / (work.model - logits), 4.0 / 3, 1e-9);
  }
}

TEST(StepWorkTest, MetricsWorkIsTheDocumentedOne) {
  const ModelShape tiny = ParseModelShape("gpt2:h=64,l=3,v=256,s=64").value();
  EXPECT_EQ(MetricsWork(CountedSizesOf(tiny), 32, 10 * 32).model,
            320.0 * (6 * 170560 + 12 * 3 * 64 * 32));
}

TEST(StepWorkTest, ALlamasKeysAndGateAreCounted) {
  // Per token: q and o 2 h², k and v 2 h · (kv · d), three MLP matrices; scores of all heads.
  const ModelShape shape = ParseModelShape("llama:h=64,l=2,v=100,i=96,heads=4,kv=2,s=32").value();
  const double matrices = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96);
  EXPECT_EQ(WorkOf(shape, {1, 32}).model, 32 * (6 * matrices + 12 * 2 * 64 * 32 + 6 * 64 * 100));
}

TEST(StepWorkTest, TheEarlierFormulaLeavesLogitsAndScoresOut) {
  const ModelShape shape = ParseModelShape("gpt2:h=20480,l=105,v=50257,s=2048").value();
  EXPECT_EQ(EarlierMegatronFlops(shape, {1, 2048}),
            8.0 * 2048 * 105 * (12.0 * 20480 * 20480 + 13 * 20480));
}

TEST(StepWorkTest, TheSourcesFirstRowsHaveTheEarlierFormulasTflops) {
  // Their layers are not said; these are the only whole numbers that the formula allows.
  struct Row {
    uint64_t h, l, gpus, samples;
    double seconds, tflops;
  };
  for (const Row& row : std::vector<Row>{{14400, 80, 384, 2040, 189.06, 91.67},
                                         {14400, 78, 384, 2048, 183.64, 92.38},
                                         {14400, 80, 384, 2046, 185.75, 93.59},
                                         {14400, 80, 320, 2048, 221.21, 94.39},
                                         {14400, 72, 384, 2048, 172.4, 90.84},
                                         {14400, 78, 384, 2048, 172.36, 98.43},
                                         {14400, 80, 320, 2048, 207.92, 100.43},
                                         {14400, 77, 352, 2048, 186.65, 97.89},
                                         {14400, 72, 384, 2048, 161.96, 96.69},
                                         {13824, 80, 320, 2048, 151.07, 127.38},
                                         {13824, 80, 320, 2048, 152.51, 126.18}}) {
    const double flops = EarlierMegatronFlops(Gpt(row.h, row.l), {row.samples, 2048});
    EXPECT_NEAR(TflopsPerGpu(flops, row.seconds, row.gpus) / row.tflops, 1, 0.0005) << row.seconds;
  }
}

TEST(StepWorkTest, ASetupsTflopsTimesSecondsAreConstant) {
  for (const double seconds : {110.42, 117.07, 143.31}) {
    EXPECT_NEAR(HardwareTflops(14336, 72, 2048, 384, seconds) * seconds, 16121.6, 1.5);
  }
}

TEST(TrainingTimeTest, SpeedGivesTheSourcesDaysAndHours) {
  const TrainingTime days =
      TimeBySpeed({.parameters = 200e9, .tokens = 300e9, .gpus = 350, .tflops = 150});
  EXPECT_NEAR(days.days, 105.82, 0.005);
  EXPECT_NEAR(days.gpu_hours, 888888.89, 0.005);
  EXPECT_EQ(days.steps, 0);
  const TrainingTime plain = TimeBySpeed(
      {.parameters = 200e9, .tokens = 300e9, .gpus = 350, .tflops = 150, .recompute = false});
  EXPECT_NEAR(plain.days, days.days * 6 / 8, 1e-9);
}

TEST(TrainingTimeTest, StepsGiveTheDaysOfATraining) {
  const TrainingTime planned = TimeBySteps(300e9, 2048 * 2048, 102.03, 384);
  EXPECT_EQ(planned.steps, 71526);
  EXPECT_NEAR(planned.days, 84.5, 0.05);
  const TrainingTime longer = TimeBySteps(400e9, 2048 * 2048, 102.03, 384);
  EXPECT_EQ(longer.steps, 95367);
  EXPECT_NEAR(longer.days, 112.6, 0.05);
  EXPECT_EQ(TrainingTimeText(planned), "71526 steps, 84.5 days, 778432 GPU hours");
}

}  // namespace
}  // namespace penstock::train
