#include "run/identity/replay_plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace penstock::train {
namespace {

using Json = nlohmann::json;

TEST(ReplayPlanTest, ChangesBeginSegmentsAtTheirSteps) {
  const std::vector<RunChange> changes = {
      {.step = 2, .key = "a", .before = "1", .after = "2"},
      {.step = 4, .key = "a", .before = "2", .after = "3"},
      {.step = 4, .key = "b", .before = "0", .after = "1"},
      {.step = 7, .key = "b", .before = "1", .after = "2"},
  };
  const auto lasts = [&](uint64_t from, uint64_t to) {
    std::vector<uint64_t> steps;
    for (const ReplaySegment& segment : ReplaySegments(changes, from, to)) {
      steps.push_back(segment.last);
    }
    return steps;
  };
  EXPECT_EQ(lasts(0, 9), (std::vector<uint64_t>{2, 4, 7, 9}));
  EXPECT_EQ(lasts(2, 7), (std::vector<uint64_t>{4, 7}));
  EXPECT_EQ(lasts(7, 9), (std::vector<uint64_t>{9}));
  EXPECT_EQ(lasts(8, 9), (std::vector<uint64_t>{9}));
  const std::vector<ReplaySegment> segments = ReplaySegments(changes, 2, 8);
  ASSERT_EQ(segments.size(), 3U);
  ASSERT_EQ(segments[0].changes.size(), 1U) << "one of the step of the commit holds from the start";
  EXPECT_EQ(segments[0].changes[0].value, "2");
  ASSERT_EQ(segments[1].changes.size(), 2U);
  EXPECT_EQ(segments[1].changes[1].key, "b");
  EXPECT_EQ(segments[2].changes.size(), 1U);
}

TEST(ReplayPlanTest, StepsThatARunPassesOverAreNoneAfterAnother) {
  EXPECT_EQ(StepAfter(3, {}), 4U);
  EXPECT_EQ(StepAfter(3, {{4, 6}, {9, 9}, {7, 7}}), 8U);
  EXPECT_EQ(StepAfter(7, {{4, 6}, {9, 9}, {7, 7}}), 8U);
}

const Json kIdentity = {
    {"train_batch_size", 8},
    {"train_micro_batch_size_per_gpu", 2},
    {"gradient_accumulation_steps", 2},
    {"gradient_clipping", 1.0},
    {"bf16", {{"enabled", false}, {"check_grad_overflow", false}}},
    {"fp16", {{"enabled", true}, {"hysteresis", 2}}},
    {"communication_data_type", "fp16"},
    {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}}},
    {"scheduler", nullptr},
    {"world_size", 2},
    {"penstock", {{"compute_threads", 3}}},
    {"seed", 5},
    {"arithmetic", "cpu"},
};

TEST(ReplayPlanTest, MicroBatchesOfARankAreNoChangeForOneRank) {
  const std::vector<RunChange> changes = {
      {.step = 4, .key = "train_batch_size", .before = "8", .after = "16"},
      {.step = 4, .key = "gradient_accumulation_steps", .before = "2", .after = "4"}};
  const std::vector<ReplaySegment> segments = ReplaySegments(changes, 2, 6);
  ASSERT_EQ(segments.size(), 2U);
  ASSERT_EQ(segments[1].changes.size(), 1U);
  EXPECT_EQ(segments[1].changes[0].key, "train_batch_size");
}

TEST(ReplayPlanTest, OneRankTakesTheMicroBatchesOfAll) {
  const Result<std::string> text = ReplayConfig(kIdentity.dump(), "/scratch", false);
  ASSERT_TRUE(text.ok());
  const Json config = Json::parse(*text);
  EXPECT_FALSE(config.contains("gradient_accumulation_steps")) << "it follows: 4";
  EXPECT_EQ(config["train_batch_size"], 8);
  EXPECT_EQ(config["train_micro_batch_size_per_gpu"], 2);
  EXPECT_EQ(config["fp16"], kIdentity["fp16"]);
  EXPECT_EQ(config["communication_data_type"], "fp16");
  EXPECT_EQ(config["penstock"]["compute_threads"], 3);
  EXPECT_EQ(config["penstock"]["durable"], false);
  EXPECT_EQ(config["zero_optimization"]["offload_param"]["nvme_path"], "/scratch");
  for (const char* key : {"scheduler", "seed", "arithmetic", "world_size"}) {
    EXPECT_FALSE(config.contains(key)) << key;
  }
}

TEST(ReplayPlanTest, InFp32NothingOfAnotherDtypeIsLeft) {
  EXPECT_EQ(DTypeOf(kIdentity.dump()), DType::kFloat16);
  const Json config = Json::parse(*ReplayConfig(kIdentity.dump(), "/scratch", true));
  for (const char* key : {"bf16", "fp16", "communication_data_type"}) {
    EXPECT_FALSE(config.contains(key)) << key;
    EXPECT_TRUE(IsOfDtype(key));
  }
  EXPECT_TRUE(IsOfDtype("fp16.hysteresis"));
  EXPECT_FALSE(IsOfDtype("optimizer.params.lr"));
}

TEST(ReplayPlanTest, GradientsThatWereAddedByRankAreRefusedIfThereWereSeveral) {
  Json identity = kIdentity;
  identity["penstock"]["gradient_order"] = "rank";
  const Result<std::string> refused = ReplayConfig(identity.dump(), "/scratch", false);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  identity.erase("world_size");
  EXPECT_TRUE(ReplayConfig(identity.dump(), "/scratch", false).ok());
}

}  // namespace
}  // namespace penstock::train
