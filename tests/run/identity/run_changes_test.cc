#include "run/identity/run_changes.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "run/identity/run_identity.h"

namespace penstock::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string ChangeRefusal(const std::vector<std::string>& texts) {
  const auto changes = ParseChanges(texts);
  if (changes.ok()) return "none";
  EXPECT_EQ(changes.error().code, ErrorCode::kInvalidArgument);
  return changes.error().message;
}

std::vector<RequestedChange> ParsedChanges(const std::vector<std::string>& texts) {
  return ParseChanges(texts).value();
}

TEST(RunChanges, AreAKeyAndAValue) {
  const auto changes = ParsedChanges({"optimizer.params.lr=1e-4", R"(scheduler.type="WarmupLR")"});
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[0].key, "optimizer.params.lr");
  EXPECT_EQ(changes[0].value, "1e-4");
  EXPECT_EQ(changes[1].value, R"("WarmupLR")");
}

TEST(RunChanges, OfTheLossScaleAreThoseThatTheProgramAdvises) {
  EXPECT_EQ(ParsedChanges({"fp16.loss_scale=512", "fp16.loss_scale_window=2000"}).size(), 2U);
  EXPECT_EQ(ParsedChanges({"fp16.min_loss_scale=1"}).size(), 1U) << "as a message advises";
  EXPECT_THAT(ChangeRefusal({"fp16.enabled=true"}), HasSubstr("cannot be changed"));
}

TEST(RunChanges, WithoutAValueOrWithoutJsonAreRefused) {
  for (const char* text : {"optimizer.params.lr", "=1", ""}) {
    EXPECT_THAT(ChangeRefusal({text}), HasSubstr("KEY=VALUE")) << text;
  }
  EXPECT_THAT(ChangeRefusal({"optimizer.params.lr=low"}), HasSubstr(R"("low" is not JSON)"));
  EXPECT_THAT(ChangeRefusal({"optimizer.params.lr="}), HasSubstr(R"("" is not JSON)"));
  EXPECT_THAT(ChangeRefusal({"optimizer.params.lr=\xff"}), HasSubstr("is not JSON"));
}

TEST(RunChanges, OfWhatMakesAnotherTrainingAreRefused) {
  for (const char* key : {"seed", "optimizer.type", "optimizer", "bf16.enabled", "model", "data",
                          "optimizer.params.initial_accumulator_value", "optimizer.params.a/b",
                          "optimizer.params~x", "schedulers", "no.such.key"}) {
    EXPECT_THAT(ChangeRefusal({std::string(key) + "=1"}), HasSubstr("cannot be changed")) << key;
  }
}

TEST(RunChanges, OfOneKeyTwiceAreRefused) {
  EXPECT_THAT(ChangeRefusal({"gradient_clipping=1", "gradient_clipping=2"}), HasSubstr("keep one"));
  EXPECT_THAT(ChangeRefusal({R"(scheduler.type="WarmupLR")", "scheduler=null"}),
              HasSubstr("keep one"));
}

TEST(RunChanges, AreAConfigurationOfTheirOwn) {
  EXPECT_THAT(
      ConfigTexts(ParsedChanges({"optimizer.params.lr=1e-4", "gradient_clipping=0"})),
      ElementsAre(R"({"optimizer":{"params":{"lr":0.0001}}})", R"({"gradient_clipping":0})"));
}

TEST(RunChanges, ToAnObjectTakeThePlaceOfTheOneBefore) {
  EXPECT_THAT(ConfigTexts(ParsedChanges({R"(scheduler={"type":"WarmupLR"})"})),
              ElementsAre(R"({"scheduler":null})", R"({"scheduler":{"type":"WarmupLR"}})"));
}

std::string IdentityWith(double lr, double clipping = 1.0) {
  RunIdentity identity;
  identity.config.optimizer.lr = lr;
  identity.config.gradient_clipping = clipping;
  return ToJson(identity);
}

TEST(RunChanges, AreAcceptedWhereTheyAreAllThatDiffers) {
  const auto accepted = AcceptChanges(IdentityWith(3e30), IdentityWith(1e-3),
                                      ParsedChanges({"optimizer.params.lr=1e-3"}), 7);
  ASSERT_TRUE(accepted.ok()) << accepted.error().message;
  EXPECT_THAT(*accepted,
              ElementsAre(RunChange{
                  .step = 7, .key = "optimizer.params.lr", .before = "3e+30", .after = "0.001"}));
  EXPECT_EQ(ToText(accepted->front()), "optimizer.params.lr: 3e+30 -> 0.001");
}

TEST(RunChanges, ARunWithoutAnyHasNone) {
  EXPECT_THAT(AcceptChanges(IdentityWith(1), IdentityWith(1), {}, 7).value(), IsEmpty());
}

/// The identity of a batch of so many micro-batches of `micro` samples.
std::string BatchOf(uint64_t micro, uint64_t micro_batches, uint32_t ranks = 1) {
  RunIdentity identity;
  identity.config.micro_batch_size = micro;
  identity.config.gradient_accumulation_steps = micro_batches;
  identity.config.train_batch_size = micro * micro_batches * ranks;
  identity.ranks = ranks;
  return ToJson(identity);
}

TEST(RunChanges, OfTheBatchComeWithTheKeysThatFollow) {
  const auto accepted =
      AcceptChanges(BatchOf(2, 2), BatchOf(2, 4), ParsedChanges({"train_batch_size=8"}), 7);
  ASSERT_TRUE(accepted.ok()) << accepted.error().message;
  EXPECT_THAT(
      *accepted,
      ElementsAre(
          RunChange{.step = 7, .key = "train_batch_size", .before = "4", .after = "8"},
          RunChange{.step = 7, .key = "gradient_accumulation_steps", .before = "2", .after = "4"}));
  EXPECT_FALSE(
      AcceptChanges(BatchOf(2, 2), BatchOf(2, 2), ParsedChanges({"train_batch_size=4"}), 7).ok());
  EXPECT_FALSE(AcceptChanges(BatchOf(2, 2), BatchOf(2, 4), {}, 7).ok()) << "not by accident";
}

TEST(RunChanges, OfTheBatchOfSeveralRanksMayNameTheirMicroBatches) {
  const auto accepted = AcceptChanges(BatchOf(2, 2, 2), BatchOf(2, 4, 2),
                                      ParsedChanges({"gradient_accumulation_steps=4"}), 7);
  ASSERT_TRUE(accepted.ok()) << accepted.error().message;
  EXPECT_EQ(accepted->size(), 2U);
}

TEST(RunChanges, OfABatchThatGrowsAreRefused) {
  RunIdentity growing;
  growing.config.train_batch_size = 8;
  growing.config.rampup = config::RampupConfig{.start = 2, .increment = 2, .samples = 10};
  RunIdentity larger = growing;
  larger.config.train_batch_size = 16;
  const auto refused =
      AcceptChanges(ToJson(growing), ToJson(larger), ParsedChanges({"train_batch_size=16"}), 7);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("penstock.rampup_batch_size"));
}

TEST(RunChanges, WhatDiffersBesideThemIsRefusedWithTheFlagThatChangesIt) {
  const auto refused = AcceptChanges(IdentityWith(1, 1.0), IdentityWith(2, 0.5),
                                     ParsedChanges({"optimizer.params.lr=2"}), 7);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("step 7"), HasSubstr("gradient_clipping is 0.5, was 1.0"),
                    HasSubstr("--change 'gradient_clipping=0.5'"), Not(HasSubstr("params.lr"))));
}

TEST(RunChanges, FilesThatSayWhatWasBeforeAnEarlierChangeAreToldOfIt) {
  const RunChange earlier = {
      .step = 4, .key = "optimizer.params.lr", .before = "2.0", .after = "1.0"};
  const RunChange other = {.step = 4, .key = "gradient_clipping", .before = "2.0", .after = "1.0"};
  const auto refused = AcceptChanges(IdentityWith(1), IdentityWith(2), {}, 7, {earlier, other});
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("the run changed optimizer.params.lr: 2.0 -> 1.0 after step 4"),
                    Not(HasSubstr("changed gradient_clipping"))));
}

TEST(RunChanges, TheFlagIsNotNamedWhereItDoesNotHelp) {
  RunIdentity other;
  other.seed = 8;
  const auto refused = AcceptChanges(ToJson(RunIdentity()), ToJson(other), {}, 7);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, AllOf(HasSubstr("seed is 8"), Not(HasSubstr("--change"))));
}

TEST(RunChanges, ThatChangeNothingAreRefused) {
  const auto refused =
      AcceptChanges(IdentityWith(1), IdentityWith(1), ParsedChanges({"optimizer.params.lr=1"}), 7);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("optimizer.params.lr"), HasSubstr("step 7"), HasSubstr("already")));
}

RunIdentity WithBetas(double beta1) {
  RunIdentity identity;
  identity.config.optimizer.hyper =
      kernels::AdamHyperparameters{.beta1 = static_cast<float>(beta1)};
  return identity;
}

TEST(RunChanges, OfAListHaveItWhole) {
  const std::string before = ToJson(WithBetas(0.5));
  const std::string now = ToJson(WithBetas(0.25));
  const auto accepted =
      AcceptChanges(before, now, ParsedChanges({"optimizer.params.betas=[0.25, 0.999]"}), 7);
  ASSERT_TRUE(accepted.ok()) << accepted.error().message;
  EXPECT_THAT(accepted->front().after, HasSubstr("[0.25,"));
  const auto refused = AcceptChanges(before, now, {}, 7);
  EXPECT_THAT(refused.error().message, HasSubstr("--change 'optimizer.params.betas=[0.25,"));
}

TEST(RunChanges, ASchedulerComesAndGoesWhole) {
  RunIdentity with;
  with.config.scheduler.type = config::SchedulerType::kWarmupLr;
  const std::string without = ToJson(RunIdentity());
  const auto comes =
      AcceptChanges(without, ToJson(with), ParsedChanges({R"(scheduler={"type":"WarmupLR"})"}), 7);
  ASSERT_TRUE(comes.ok()) << comes.error().message;
  EXPECT_EQ(comes->front().before, "null");
  const auto goes = AcceptChanges(ToJson(with), without, ParsedChanges({"scheduler=null"}), 7);
  ASSERT_TRUE(goes.ok()) << goes.error().message;
  EXPECT_EQ(goes->front().after, "null");
}

TEST(RunChanges, HoldOnceALaterStepIsCommitted) {
  const std::vector<RunChange> changes = {{.step = 3, .key = "a", .before = "1", .after = "2"},
                                          {.step = 7, .key = "a", .before = "2", .after = "3"}};
  EXPECT_THAT(CommittedChanges(changes, 3), IsEmpty());
  EXPECT_THAT(CommittedChanges(changes, 7), ElementsAre(changes[0]));
  EXPECT_EQ(CommittedChanges(changes, 8), changes);
}

}  // namespace
}  // namespace penstock::train
