#include "run/identity/run_identity.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>

namespace penstock::train {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(RunIdentity, AKeyThatCameLaterIsNotThereWhereNothingChanged) {
  RunIdentity identity;
  identity.config.dtype = DType::kBFloat16;
  const std::string before = ToJson(identity);
  EXPECT_THAT(before, Not(HasSubstr("bf16_optimizer_states")));
  EXPECT_THAT(Differences(before, before), IsEmpty());
  identity.config.optimizer.moments = DType::kBFloat16;
  EXPECT_THAT(Differences(before, ToJson(identity)),
              ElementsAre("bf16.bf16_optimizer_states is true, was not there"));
}

TEST(RunIdentity, TheLossScalesRulesAreThereWithFp16Alone) {
  RunIdentity identity;
  identity.config.dtype = DType::kBFloat16;
  EXPECT_THAT(ToJson(identity), Not(HasSubstr("fp16")));
  identity.config.dtype = DType::kFloat16;
  identity.config.loss_scaling.emplace();
  const std::string before = ToJson(identity);
  identity.config.loss_scaling->hysteresis = 5;
  EXPECT_THAT(Differences(before, ToJson(identity)), ElementsAre("fp16.hysteresis is 5, was 2"));
}

TEST(RunIdentity, WhatGradientsAreSentInIsThereIfItRoundsThem) {
  RunIdentity identity;
  const std::string exact = ToJson(identity);
  EXPECT_THAT(exact, Not(HasSubstr("communication_data_type")));
  identity.config.communication = DType::kBFloat16;
  EXPECT_THAT(Differences(exact, ToJson(identity)),
              ElementsAre(R"(communication_data_type is "bf16", was not there)"));
  EXPECT_THAT(Differences(ToJson(identity), exact),
              ElementsAre(R"(communication_data_type is not there, was "bf16")"));
}

TEST(RunIdentity, HowGradientsAreAddedUpIsThereIfRanksAddTheirOwnFirst) {
  RunIdentity identity;
  const std::string global = ToJson(identity);
  EXPECT_THAT(global, Not(HasSubstr("gradient_order")));
  identity.config.gradient_order = config::GradientOrder::kRank;
  EXPECT_THAT(Differences(global, ToJson(identity)),
              ElementsAre(R"(penstock.gradient_order is "rank", was not there)"));
}

TEST(RunIdentity, HowTheBatchGrowsIsThereIfItDoes) {
  RunIdentity identity;
  const std::string constant = ToJson(identity);
  EXPECT_THAT(constant, Not(HasSubstr("rampup_batch_size")));
  EXPECT_FALSE(HasRampup(nlohmann::json::parse(constant)));
  identity.config.rampup = config::RampupConfig{16, 8, 100};
  const std::string growing = ToJson(identity);
  EXPECT_TRUE(HasRampup(nlohmann::json::parse(growing)));
  EXPECT_FALSE(HasRampup(nlohmann::json::parse(R"({"arithmetic": "", "penstock": 7})")));
  EXPECT_THAT(Differences(constant, growing),
              Contains("penstock.rampup_batch_size.0 is 16, was not there"));
  identity.config.rampup->samples = 200;
  EXPECT_THAT(Differences(growing, ToJson(identity)),
              ElementsAre("penstock.rampup_batch_size.2 is 200, was 100"));
}

RunIdentity Accumulating(uint64_t micro_batches) {
  RunIdentity identity;
  identity.config.gradient_accumulation_steps = micro_batches;
  return identity;
}

/// As a version before the key wrote it.
std::string WithoutGradientSums(const std::string& identity) {
  auto json = nlohmann::ordered_json::parse(identity);
  json.erase("gradient_sums");
  return json.dump();
}

TEST(RunIdentity, ACommitWithOtherSumsOfMicroBatchesIsRefusedByTheirKey) {
  const std::string now = ToJson(Accumulating(4));
  EXPECT_THAT(now, HasSubstr(R"("gradient_sums":2)"));
  EXPECT_THAT(Differences(now, now), IsEmpty());
  EXPECT_THAT(Differences(WithoutGradientSums(now), now),
              ElementsAre("gradient_sums is 2, was not there (the version that made the commit "
                          "adds up micro-batches in another way)"));
}

TEST(RunIdentity, ACommitWithOneMicroBatchIsThatOfEveryVersion) {
  const std::string now = ToJson(Accumulating(1));
  EXPECT_EQ(WithoutGradientSums(now), now);
}

/// 24 micro-batches in a step.
RunIdentity Shared(uint64_t ranks) {
  RunIdentity identity = Accumulating(24 / ranks);
  identity.ranks = ranks;
  identity.config.train_batch_size = 24;
  return identity;
}

TEST(RunIdentity, TheNumberOfRanksThatShareAStepIsNoDifference) {
  for (const uint64_t before : {1, 2, 8, 24}) {
    for (const uint64_t now : {1, 3, 24}) {
      EXPECT_THAT(Differences(ToJson(Shared(before)), ToJson(Shared(now))), IsEmpty());
    }
  }
  RunIdentity larger = Shared(4);
  larger.config.train_batch_size = 48;
  EXPECT_THAT(Differences(ToJson(Shared(2)), ToJson(larger)),
              ElementsAre("train_batch_size is 48, was 24"));
}

TEST(RunIdentity, RanksRefuseACommitWithOtherSumsOfMicroBatches) {
  EXPECT_THAT(Differences(WithoutGradientSums(ToJson(Shared(1))), ToJson(Shared(24))),
              ElementsAre(HasSubstr("gradient_sums is 2, was not there")));
}

TEST(RunIdentity, AnotherNumberOfMicroBatchesIsNamedAlone) {
  const std::string one = ToJson(Accumulating(1));
  const std::string four = ToJson(Accumulating(4));
  EXPECT_THAT(Differences(one, four), ElementsAre("gradient_accumulation_steps is 4, was 1"));
  EXPECT_THAT(Differences(four, one), ElementsAre("gradient_accumulation_steps is 1, was 4"));
  EXPECT_THAT(Differences(WithoutGradientSums(four), one),
              ElementsAre("gradient_accumulation_steps is 1, was 4"));
}

}  // namespace
}  // namespace penstock::train
