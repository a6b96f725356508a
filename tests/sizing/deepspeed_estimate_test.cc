// DeepSpeed's tables, to the byte.
#include "sizing/deepspeed_estimate.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "sizing/model_shape.h"

namespace penstock::train {
namespace {

constexpr uint64_t kT0Parameters = 2783959040;
constexpr uint64_t kT0Largest = 65798144;

struct ExpectedRow {
  int stage;
  bool offload_param, offload_optimizer;
  std::optional<bool> zero_init;
  uint64_t cpu, gpu;
};

void ExpectRows(const EstimateInput& input, const std::vector<ExpectedRow>& expected) {
  const std::vector<EstimateRow> rows = DeepSpeedEstimate(input);
  ASSERT_EQ(rows.size(), expected.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].stage, expected[i].stage) << i;
    EXPECT_EQ(rows[i].offload_param, expected[i].offload_param) << i;
    EXPECT_EQ(rows[i].offload_optimizer, expected[i].offload_optimizer) << i;
    EXPECT_EQ(rows[i].zero_init, expected[i].zero_init) << i;
    EXPECT_EQ(rows[i].cpu.value, expected[i].cpu) << i;
    EXPECT_EQ(rows[i].gpu.value, expected[i].gpu) << i;
  }
}

TEST(DeepSpeedEstimateTest, OneGpuHasTheBytesOfTheSourcesTable) {
  const ModelShape t0 = ParseModelShape("t5:h=2048,l=24,v=32128,i=5120,heads=32").value();
  ExpectRows({.parameters = CountParameters(t0).total(), .largest_module = LargestModule(t0)},
             {{3, true, true, true, 75166894080, 263192576},
              {3, true, true, false, 75166894080, 263192576},
              {3, false, true, true, 66815016960, 5831110656},
              {3, false, true, false, 66815016960, 5831110656},
              {3, false, false, true, 394788864, 50374455296},
              {3, false, false, false, 16703754240, 50374455296},
              {2, false, true, {}, 66815016960, 5567918080},
              {2, false, false, {}, 16703754240, 55679180800}});
}

TEST(DeepSpeedEstimateTest, SeveralNodesShareAndSeveralGpusCopy) {
  // By Python's arithmetic, with 1 / 3 rounded: 18 P / 3 is not always 6 P.
  ExpectRows({kT0Parameters, kT0Largest, 8, 3}, {{3, true, true, true, 25055631360, 263192576},
                                                 {3, true, true, false, 133630033920, 263192576},
                                                 {3, false, true, true, 22271672320, 495189162},
                                                 {3, false, true, false, 133630033920, 495189162},
                                                 {3, false, false, true, 3158310912, 2351161856},
                                                 {3, false, false, false, 133630033920, 2351161856},
                                                 {2, false, true, {}, 400890101760, 5567918080},
                                                 {2, false, false, {}, 133630033920, 12991808853}});
  ExpectRows({1000000007, 1234567, 1, 7}, {{3, true, true, true, 3857142884, 4938268},
                                           {3, true, true, false, 6000000042, 4938268},
                                           {3, false, true, true, 3428571452, 290652555},
                                           {3, false, true, false, 6000000042, 290652555},
                                           {3, false, false, true, 7407402, 2576366857},
                                           {3, false, false, false, 6000000042, 2576366857},
                                           {2, false, true, {}, 42000000294, 2000000014},
                                           {2, false, false, {}, 6000000042, 6285714329}});
}

TEST(DeepSpeedEstimateTest, EachRowIsTheFormulaForAnyModelAndMachine) {
  for (const uint64_t p : {1ULL, 999ULL, 170560ULL, 124439808ULL, 405853388800ULL}) {
    for (const uint64_t g : {1, 2, 4, 8, 16}) {
      for (const uint64_t n : {1, 2, 4, 8}) {
        const EstimateInput input{p, p / 7, g, n};
        const std::vector<EstimateRow> rows = DeepSpeedEstimate(input);
        EXPECT_EQ(rows[0].cpu.value, p * 27 / n);
        EXPECT_EQ(rows[1].cpu.value, std::max(p * 6 * g, p * 27 / n));
        EXPECT_EQ(rows[2].gpu.value, 4 * (p / 7) + 2 * p / (g * n));
        EXPECT_EQ(rows[3].cpu.value, std::max(p * 6 * g, p * 24 / n));
        EXPECT_EQ(rows[4].gpu.value, 4 * (p / 7) + 18 * p / (g * n));
        EXPECT_EQ(rows[4].cpu.value, 6 * (p / 7) * g);
        EXPECT_EQ(rows[6].cpu.value, p * std::max<uint64_t>(6 * g * n, 24));
        EXPECT_EQ(rows[7].gpu.value, 4 * p + 16 * p / (g * n));
        EXPECT_EQ(rows[7].gpu_since_2024->value, 2 * p + 18 * p / (g * n));
      }
    }
  }
}

TEST(DeepSpeedEstimateTest, TheTextIsDeepSpeedsTable) {
  const std::string text = EstimateText({kT0Parameters, kT0Largest});
  EXPECT_EQ(
      text,
      "DeepSpeed's estimate of memory for weights, optimizer states and gradients, and "
      "nothing else:\n"
      "2783959040 parameters, 65798144 of them in the largest module; 1 node, 1 GPU in each\n"
      "  stage  |  per node |  per GPU | options (GB: 2^30 bytes)\n"
      "  ZeRO-3 |   70.00GB |   0.25GB | offload_param=cpu , offload_optimizer=cpu , zero_init=1\n"
      "  ZeRO-3 |   70.00GB |   0.25GB | offload_param=cpu , offload_optimizer=cpu , zero_init=0\n"
      "  ZeRO-3 |   62.23GB |   5.43GB | offload_param=none, offload_optimizer=cpu , zero_init=1\n"
      "  ZeRO-3 |   62.23GB |   5.43GB | offload_param=none, offload_optimizer=cpu , zero_init=0\n"
      "  ZeRO-3 |    0.37GB |  46.91GB | offload_param=none, offload_optimizer=none, zero_init=1\n"
      "  ZeRO-3 |   15.56GB |  46.91GB | offload_param=none, offload_optimizer=none, zero_init=0\n"
      "  ZeRO-2 |   62.23GB |   5.19GB | offload_optimizer=cpu \n"
      "  ZeRO-2 |   15.56GB |  51.86GB | offload_optimizer=none\n");
  EXPECT_NE(EstimateText({kT0Parameters, kT0Largest, 8, 1})
                .find("DeepSpeed since 2024 says 11.02GB per GPU for this row\n"),
            std::string::npos);
}

TEST(DeepSpeedEstimateTest, TheJsonHasTheContractsKeys) {
  const nlohmann::json object = EstimateJson({kT0Parameters, kT0Largest});
  EXPECT_EQ(object["rows"].size(), 8);
  EXPECT_EQ(object["rows"][0], nlohmann::json::parse(R"({
    "stage": 3, "offload_param": "cpu", "offload_optimizer": "cpu", "zero_init": true,
    "cpu_bytes": 75166894080, "gpu_bytes": 263192576})"));
  EXPECT_EQ(object["rows"][6], nlohmann::json::parse(R"({
    "stage": 2, "offload_param": "none", "offload_optimizer": "cpu", "zero_init": null,
    "cpu_bytes": 66815016960, "gpu_bytes": 5567918080})"));
}

}  // namespace
}  // namespace penstock::train
