// The optimizer of a good configuration.
#include <gmock/gmock.h>

#include "config/config.h"
#include "tests/config/config_test_util.h"

namespace penstock::config {
namespace {

using ::testing::HasSubstr;

TEST(ConfigTest, AdamIsAdamWUnlessItsModeIsOff) {
  const auto adam = [](const std::string& section) {
    return Good(WithBatch("\"optimizer\": " + section));
  };
  EXPECT_TRUE(AdamOf(adam(R"({"type": "Adam"})")).adam_w_mode);
  EXPECT_EQ(adam(R"({"type": "adam"})").optimizer.type, "adam");
  const Config l2 = adam(R"({"type": "Adam", "params": {"adam_w_mode": false}})");
  EXPECT_FALSE(AdamOf(l2).adam_w_mode);
  const Config all = adam(
      R"({"type": "ADAMW", "legacy_fusion": true, "params": {"lr": 0.25, "betas": [0, 0.5],
          "eps": 0, "weight_decay": 0.125, "bias_correction": false, "amsgrad": false,
          "torch_adam": true, "fp32_optimizer_states": true}})");
  EXPECT_EQ(all.optimizer.lr, 0.25);
  EXPECT_EQ(AdamOf(all).beta1, 0);
  EXPECT_EQ(AdamOf(all).beta2, 0.5);
  EXPECT_EQ(AdamOf(all).eps, 0);
  EXPECT_EQ(AdamOf(all).weight_decay, 0.125);
  EXPECT_FALSE(AdamOf(all).bias_correction);
}

TEST(ConfigTest, LionHasOneMomentAndDeepSpeedsDefaults) {
  const Config config = Good(WithBatch(R"("optimizer": {"type": "Lion"})"));
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  const auto& lion = std::get<kernels::LionHyperparameters>(config.optimizer.hyper);
  EXPECT_EQ(lion.beta1, 0.9);
  EXPECT_EQ(lion.beta2, 0.999);
  EXPECT_EQ(lion.weight_decay, 0);
  EXPECT_TRUE(kernels::MomentsOf(config.optimizer.hyper).exp_avg);
  EXPECT_FALSE(kernels::MomentsOf(config.optimizer.hyper).exp_avg_sq);
}

TEST(ConfigTest, AdagradHasItsSumAndPyTorchsDefaults) {
  const Config config = Good(WithBatch(R"("optimizer": {"type": "Adagrad"})"));
  EXPECT_EQ(config.optimizer.lr, 1e-2);
  EXPECT_EQ(config.optimizer.initial_accumulator_value, 0);
  const auto& adagrad = std::get<kernels::AdagradHyperparameters>(config.optimizer.hyper);
  EXPECT_EQ(adagrad.lr_decay, 0);
  EXPECT_EQ(adagrad.eps, 1e-10);
  EXPECT_EQ(adagrad.weight_decay, 0);
  EXPECT_FALSE(kernels::MomentsOf(config.optimizer.hyper).exp_avg);
  EXPECT_TRUE(kernels::MomentsOf(config.optimizer.hyper).exp_avg_sq);
}

TEST(ConfigTest, LambHasAdamsMomentsAndDeepSpeedsDefaults) {
  const Config config = Good(WithBatch(R"("optimizer": {"type": "LAMB"})"));
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  const auto& lamb = std::get<kernels::LambHyperparameters>(config.optimizer.hyper);
  EXPECT_EQ(lamb.beta1, 0.9);
  EXPECT_EQ(lamb.beta2, 0.999);
  EXPECT_EQ(lamb.eps, 1e-8);
  EXPECT_EQ(lamb.weight_decay, 0);
  EXPECT_TRUE(lamb.bias_correction);
  EXPECT_EQ(lamb.max_coeff, 10);
  EXPECT_EQ(lamb.min_coeff, 0.01);
  EXPECT_TRUE(kernels::MomentsOf(config.optimizer.hyper).exp_avg);
  EXPECT_TRUE(kernels::MomentsOf(config.optimizer.hyper).exp_avg_sq);
  const Config all = Good(WithBatch(
      R"("optimizer": {"type": "Lamb", "params": {"lr": 2, "betas": [0, 0.5], "eps": 0,
          "weight_decay": 0.125, "bias_correction": false, "max_coeff": 1, "min_coeff": 1,
          "amsgrad": false, "eps_inside_sqrt": false}})"));
  const auto& given = std::get<kernels::LambHyperparameters>(all.optimizer.hyper);
  EXPECT_EQ(all.optimizer.lr, 2);
  EXPECT_EQ(given.beta2, 0.5);
  EXPECT_EQ(given.weight_decay, 0.125);
  EXPECT_FALSE(given.bias_correction);
  EXPECT_EQ(given.max_coeff, 1);
  EXPECT_EQ(given.min_coeff, 1);
}

TEST(ConfigTest, MomentsInBFloat16NeedBFloat16Training) {
  const Config config =
      Good(WithBatch(R"("bf16": {"enabled": true, "bf16_optimizer_states": true})"));
  EXPECT_EQ(config.optimizer.moments, kernels::DType::kBFloat16);
  EXPECT_EQ(Good(WithBatch("")).optimizer.moments, kernels::DType::kFloat32);
  EXPECT_THAT(Refused(WithBatch(R"("bf16": {"bf16_optimizer_states": true})")),
              HasSubstr("bf16.bf16_optimizer_states: it needs bf16.enabled"));
}

}  // namespace
}  // namespace penstock::config
