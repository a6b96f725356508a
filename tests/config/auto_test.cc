// What "auto" means: what a flag says, what a resumed run keeps, what transformers' Trainer sets,
// or the default; and that each is listed once with its value and source.
#include "config/auto.h"

#include <gmock/gmock.h>

#include "config/config.h"
#include "config/to_json.h"
#include "tests/config/config_test_util.h"

namespace penstock::config {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

/// As it stands in transformers' documentation, but for the homes.
constexpr const char* kTransformers = R"({
  "fp16": {"enabled": "auto", "loss_scale": 0, "initial_scale_power": 16},
  "bf16": {"enabled": "auto"},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                            "weight_decay": "auto"}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                               "warmup_num_steps": "auto"}},
  "zero_optimization": {"reduce_bucket_size": "auto"},
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto"})";

Config With(const AutoSources& sources, const std::string& text = kTransformers,
            uint64_t world_size = 1) {
  Result<Config> config = ParseConfig({{"ds.json", text}}, world_size, sources);
  EXPECT_TRUE(config.ok()) << text << "\n" << (config.ok() ? "" : config.error().message);
  return config.ok() ? *config : Config{};
}

std::string RefusedWith(const AutoFlags& flags, const std::string& text) {
  const Result<Config> config = ParseConfig({{"ds.json", text}}, 1, {.flags = flags});
  EXPECT_FALSE(config.ok()) << "accepted: " << text;
  return config.ok() ? "" : config.error().message;
}

std::vector<std::string> Lines(const Config& config) {
  std::vector<std::string> lines;
  for (const AutomaticKey& key : config.automatic) lines.push_back(ToText(key));
  return lines;
}

TEST(ConfigAutoTest, WithoutFlagsItIsWhatTheTrainerSets) {
  const Config config = With({});
  EXPECT_EQ(config.optimizer.lr, 5e-5);
  EXPECT_EQ(AdamOf(config).beta1, 0.9);
  EXPECT_EQ(AdamOf(config).beta2, 0.999);
  EXPECT_EQ(AdamOf(config).eps, 1e-8);
  EXPECT_EQ(AdamOf(config).weight_decay, 0);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.scheduler.warmup_num_steps, 2) << "0, and less than 2 means 2";
  EXPECT_EQ(config.scheduler.warmup_min_lr, 0);
  EXPECT_FALSE(config.scheduler.warmup_max_lr.has_value())
      << "the optimizer's, whatever it becomes";
  EXPECT_EQ(config.micro_batch_size, 8u);
  EXPECT_EQ(config.gradient_accumulation_steps, 1u);
  EXPECT_EQ(config.train_batch_size, 8u);
  EXPECT_EQ(config.dtype, kernels::DType::kFloat32);
  EXPECT_THAT(Lines(config),
              ElementsAre("bf16.enabled: auto -> false (transformers' default)",
                          "fp16.enabled: auto -> false (transformers' default)",
                          "gradient_accumulation_steps: auto -> 1 (transformers' default)",
                          "gradient_clipping: auto -> 1.0 (transformers' default)",
                          "optimizer.params.betas: auto -> [0.9,0.999] (transformers' default)",
                          "optimizer.params.eps: auto -> 1e-08 (transformers' default)",
                          "optimizer.params.lr: auto -> 5e-05 (transformers' default)",
                          "optimizer.params.weight_decay: auto -> 0.0 (transformers' default)",
                          "scheduler.params.warmup_max_lr: auto -> 5e-05 (the optimizer's lr)",
                          "scheduler.params.warmup_min_lr: auto -> 0 (transformers' default)",
                          "scheduler.params.warmup_num_steps: auto -> 0 (transformers' default)",
                          "train_batch_size: auto -> 8 (from the other batch sizes)",
                          "train_micro_batch_size_per_gpu: auto -> 8 (transformers' default)"));
}

TEST(ConfigAutoTest, FlagsGiveTheValues) {
  const AutoFlags flags = {.learning_rate = 3e-4,
                           .adam_beta1 = 0.8,
                           .adam_beta2 = 0.95,
                           .adam_epsilon = 1e-6,
                           .weight_decay = 0.1,
                           .max_grad_norm = 0.5,
                           .warmup_steps = 30,
                           .per_device_train_batch_size = 4,
                           .gradient_accumulation_steps = 2,
                           .bf16 = true};
  const Config config = With({.flags = flags}, kTransformers, 3);
  EXPECT_EQ(config.optimizer.lr, 3e-4);
  EXPECT_EQ(AdamOf(config).beta1, 0.8);
  EXPECT_EQ(AdamOf(config).beta2, 0.95);
  EXPECT_EQ(AdamOf(config).eps, 1e-6);
  EXPECT_EQ(AdamOf(config).weight_decay, 0.1);
  EXPECT_EQ(config.gradient_clipping, 0.5);
  EXPECT_EQ(config.scheduler.warmup_num_steps, 30);
  EXPECT_EQ(config.micro_batch_size, 4u);
  EXPECT_EQ(config.gradient_accumulation_steps, 2u);
  EXPECT_EQ(config.train_batch_size, 24u);
  EXPECT_EQ(config.dtype, kernels::DType::kBFloat16);
  const std::vector<std::string> lines = Lines(config);
  EXPECT_THAT(lines, Contains("optimizer.params.lr: auto -> 0.0003 (--learning-rate)"));
  EXPECT_THAT(lines,
              Contains("optimizer.params.betas: auto -> [0.8,0.95] (--adam-beta1, --adam-beta2)"));
  EXPECT_THAT(lines, Contains("bf16.enabled: auto -> true (--bf16)"));
  EXPECT_THAT(lines, Contains("train_batch_size: auto -> 24 (from the other batch sizes)"));
  EXPECT_EQ(With({.flags = {.fp16 = true}}).dtype, kernels::DType::kFloat16);
}

TEST(ConfigAutoTest, AFlagGivesAKeyThatIsNotThereItsValue) {
  const Config config = With({.flags = {.learning_rate = 0.5,
                                        .adam_beta2 = 0.5,
                                        .per_device_train_batch_size = 3,
                                        .bf16 = true}},
                             "{}");
  EXPECT_EQ(config.optimizer.lr, 0.5);
  EXPECT_EQ(AdamOf(config).beta1, 0.9);
  EXPECT_EQ(AdamOf(config).beta2, 0.5);
  EXPECT_EQ(config.micro_batch_size, 3u);
  EXPECT_EQ(config.dtype, kernels::DType::kBFloat16);
  EXPECT_THAT(Lines(config), Contains("optimizer.params.lr: not given -> 0.5 (--learning-rate)"));
  EXPECT_THAT(Lines(config), Contains("optimizer.params.betas: not given -> [0.9,0.5] "
                                      "(--adam-beta2, else transformers' default)"));
  const char* old_name = R"({"train_batch_size": 1, "bfloat16": {"enabled": "auto"}})";
  EXPECT_EQ(With({.flags = {.bf16 = true}}, old_name).dtype, kernels::DType::kBFloat16);
  // No other key of a section is touched.
  const char* decay = R"({"train_batch_size": 1, "scheduler": {"type": "WarmupDecayLR",
                          "params": {"total_num_steps": 9}}})";
  const Config decaying = With({.flags = {.learning_rate = 0.5, .warmup_steps = 7}}, decay);
  EXPECT_EQ(decaying.scheduler.warmup_max_lr, 0.5);
  EXPECT_EQ(decaying.scheduler.warmup_num_steps, 7);
  EXPECT_EQ(With({}, decay).scheduler.warmup_max_lr, 1e-3);
}

TEST(ConfigAutoTest, AFlagThatDiffersFromTheConfigIsRefusedWithBothValues) {
  const std::string text = R"({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.5,
      "gradient_accumulation_steps": 3, "bf16": {"enabled": false}, "fp16": {"enabled": false},
      "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "betas": [0.7, 0.8], "eps": 1e-5,
                                                "weight_decay": 0.2}},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 70,
                                                   "warmup_max_lr": 0.002}}})";
  const std::pair<AutoFlags, const char*> kCases[] = {
      {{.learning_rate = 0.01}, "optimizer.params.lr: 0.001 differs from --learning-rate 0.01;"},
      {{.learning_rate = 0.001},
       "scheduler.params.warmup_max_lr: 0.002 differs from --learning-rate 0.001;"},
      {{.adam_beta1 = 0.9}, "optimizer.params.betas: 0.7 differs from --adam-beta1 0.9;"},
      {{.adam_beta1 = 0.7, .adam_beta2 = 0.9},
       "optimizer.params.betas: 0.8 differs from --adam-beta2 0.9;"},
      {{.adam_epsilon = 0.5}, "optimizer.params.eps: 1e-05 differs from --adam-epsilon 0.5;"},
      {{.weight_decay = 0.5}, "weight_decay: 0.2 differs from --weight-decay 0.5;"},
      {{.max_grad_norm = 0.5}, "gradient_clipping: 1.5 differs from --max-grad-norm 0.5;"},
      {{.warmup_steps = 5}, "warmup_num_steps: 70 differs from --warmup-steps 5;"},
      {{.warmup_ratio = 0.5}, "warmup_num_steps: 70 is given, and --warmup-ratio 0.5 as well;"},
      {{.per_device_train_batch_size = 5}, "2 differs from --per-device-train-batch-size 5;"},
      {{.gradient_accumulation_steps = 5}, "3 differs from --gradient-accumulation-steps 5;"},
      {{.bf16 = true}, "bf16.enabled: false differs from --bf16;"},
      {{.fp16 = true}, "fp16.enabled: false differs from --fp16;"},
  };
  for (const auto& [flags, expected] : kCases) {
    EXPECT_THAT(RefusedWith(flags, text), AllOf(StartsWith("ds.json:"), HasSubstr(expected),
                                                HasSubstr("write \"auto\" there")));
  }
  // The same value twice is no contradiction, whatever it is written like.
  With({.flags = {.max_grad_norm = 1.5, .warmup_steps = 70, .per_device_train_batch_size = 2}},
       text);
}

TEST(ConfigAutoTest, AFlagThatNothingTakesIsRefused) {
  const std::string none = R"({"train_batch_size": 1})";
  for (const AutoFlags& flags : {AutoFlags{.warmup_steps = 3}, AutoFlags{.warmup_ratio = 0.1}}) {
    EXPECT_THAT(RefusedWith(flags, none),
                HasSubstr("scheduler.type is not given, and that has no"));
  }
  EXPECT_THAT(RefusedWith({.adam_epsilon = 1}, R"({"optimizer": {"type": "Lion"}})"),
              "--adam-epsilon: optimizer.params.eps: Lion has no such parameter; remove it");
  EXPECT_THAT(RefusedWith({.bf16 = true}, R"({"fp16": {"enabled": true}, "train_batch_size": 1})"),
              HasSubstr("bf16 is enabled as well"));
  // What is wrong with the text itself is said as ever.
  EXPECT_THAT(RefusedWith({.learning_rate = 1}, R"({"optimizer": 3, "train_batch_size": 1})"),
              "ds.json:1: optimizer: expected an object, got 3");
  EXPECT_THAT(RefusedWith({.max_grad_norm = 1}, R"({"gradient_clipping": "1"})"),
              "ds.json:1: gradient_clipping: expected a number, got \"1\"");
}

TEST(ConfigAutoTest, OtherKeysTakeTheirDefaultAndAreListedOnce) {
  const Config config = Good(WithBatch(
      R"("steps_per_print": "auto",
         "optimizer": {"type": "auto", "params": {"bias_correction": "auto"}},
         "zero_optimization": {"stage": "auto", "reduce_bucket_size": "auto",
                               "zero_quantized_weights": "auto"},
         "elasticity": {"version": "auto"},
         "penstock": {"device_memory": "auto", "optimizer_threads": "auto",
                      "activation_home": "auto", "aio": {"engine": "auto"}})"));
  EXPECT_THAT(Lines(config),
              ElementsAre("optimizer.params.bias_correction: auto -> true (default)",
                          "optimizer.type: auto -> \"AdamW\" (default)",
                          "penstock.activation_home: auto -> \"device\" (default)",
                          "penstock.device_memory: auto -> null (default)",
                          "penstock.optimizer_threads: auto -> 0 (default)",
                          "steps_per_print: auto -> null (default)",
                          "zero_optimization.stage: auto -> 0 (default)",
                          "zero_optimization.zero_quantized_weights: auto -> false (default)"));
  EXPECT_THAT(PathsOf(config.superseded), ElementsAre("zero_optimization.reduce_bucket_size"));
}

TEST(ConfigAutoTest, WhatTheOtherBatchSizesGiveIsDerived) {
  const Config config = Good(R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": "auto",
                                 "gradient_accumulation_steps": 4})",
                             2);
  EXPECT_EQ(config.micro_batch_size, 3u);
  EXPECT_THAT(Lines(config),
              Contains("train_micro_batch_size_per_gpu: auto -> 3 (from the other batch sizes)"));
}

TEST(ConfigAutoTest, TheScheduleEndsWithTheRun) {
  const std::string text = WithBatch(R"("scheduler": {"type": "WarmupDecayLR", "params": {
      "total_num_steps": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
      "optimizer": {"type": "AdamW", "params": {"lr": 0.25}})");
  Config config = With({.flags = {.warmup_ratio = 0.07}}, text);
  EXPECT_EQ(config.scheduler.warmup_max_lr, 0.25);
  ASSERT_TRUE(NeedsLastStep(config));
  EXPECT_THAT(ConfigToJson(config), HasSubstr("\"total_num_steps\": \"auto\""));
  EXPECT_THAT(Lines(config), Not(Contains(HasSubstr("_num_steps"))));
  const Status none = SetLastStep(0, "--steps", config);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().message,
            "scheduler.params.total_num_steps: it depends on the last step, and --steps is 0; give "
            "it a number of steps");
  ASSERT_TRUE(SetLastStep(100, "--steps", config).ok());
  EXPECT_FALSE(NeedsLastStep(config));
  EXPECT_EQ(config.scheduler.total_num_steps, 100);
  EXPECT_EQ(config.scheduler.warmup_num_steps, 8) << "7.000000000000001, as in transformers";
  EXPECT_THAT(Lines(config),
              AllOf(Contains("scheduler.params.total_num_steps: auto -> 100 (the last step, by "
                             "--steps)"),
                    Contains("scheduler.params.warmup_num_steps: auto -> 8 (--warmup-ratio 0.07 of "
                             "100 steps)")));
  ASSERT_TRUE(SetLastStep(200, "--steps", config).ok());
  EXPECT_EQ(config.scheduler.total_num_steps, 100) << "it is no longer open";
}

/// What a run that was begun by an earlier version has stored for kTransformers.
std::string Before() {
  return ConfigToJson(Good(R"({"train_batch_size": 2, "train_micro_batch_size_per_gpu": 1,
      "gradient_accumulation_steps": 2, "gradient_clipping": 0.75, "bf16": {"enabled": true},
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.5, 0.6]}},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1000}}})"));
}

TEST(ConfigAutoTest, AResumedRunKeepsWhatItStored) {
  const Config config = With({.resumed = Before()});
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  EXPECT_EQ(AdamOf(config).beta1, 0.5);
  EXPECT_EQ(config.gradient_clipping, 0.75);
  EXPECT_EQ(config.dtype, kernels::DType::kBFloat16);
  EXPECT_EQ(config.scheduler.warmup_num_steps, 1000);
  EXPECT_FALSE(config.scheduler.warmup_max_lr.has_value());
  EXPECT_EQ(config.micro_batch_size, 1u);
  EXPECT_EQ(config.gradient_accumulation_steps, 2u);
  EXPECT_THAT(Lines(config), Contains("optimizer.params.lr: auto -> 0.001 (kept from the run)"));
  EXPECT_THAT(Lines(config), Contains("train_micro_batch_size_per_gpu: auto -> 1 (kept from the "
                                      "run)"));
  EXPECT_THAT(Lines(config), Not(Contains(HasSubstr("transformers"))));
  EXPECT_THAT(NoticesOf(config), Not(Contains(HasSubstr("precision"))));
  // A flag comes first; the run is then compared with it, like with a value in the config.
  const Config flagged = With({.flags = {.adam_beta1 = 0.7}, .resumed = Before()});
  EXPECT_EQ(AdamOf(flagged).beta1, 0.7);
  EXPECT_EQ(AdamOf(flagged).beta2, 0.6);
  // What is written is not kept.
  EXPECT_EQ(With({.resumed = Before()}, WithBatch(R"("gradient_clipping": 2)")).gradient_clipping,
            2);
}

TEST(ConfigAutoTest, AResumedRunKeepsItsBatchOnAnotherNumberOfRanks) {
  const Config config = With({.resumed = Before()}, kTransformers, 2);
  EXPECT_EQ(config.train_batch_size, 2u);
  EXPECT_EQ(config.micro_batch_size, 1u);
  EXPECT_EQ(config.gradient_accumulation_steps, 1u);
  const char* open = R"({"train_micro_batch_size_per_gpu": 1,
                         "gradient_accumulation_steps": "auto"})";
  EXPECT_EQ(With({.resumed = Before()}, open).gradient_accumulation_steps, 2u);
}

TEST(ConfigAutoTest, AResumedRunKeepsItsScheduleThoughItGoesFurther) {
  const std::string text = WithBatch(R"("scheduler": {"type": "WarmupCosineLR", "params": {
      "total_num_steps": "auto", "warmup_num_steps": "auto"}})");
  Config begun = With({.flags = {.warmup_ratio = 0.1}}, text);
  ASSERT_TRUE(SetLastStep(50, "--steps", begun).ok());
  const Config resumed =
      With({.flags = {.warmup_ratio = 0.1}, .resumed = ConfigToJson(begun)}, text);
  EXPECT_FALSE(NeedsLastStep(resumed));
  EXPECT_EQ(resumed.scheduler.total_num_steps, 50);
  EXPECT_EQ(resumed.scheduler.warmup_num_steps, 5);
  EXPECT_THAT(Lines(resumed), Contains("scheduler.params.warmup_num_steps: auto -> 5 (kept from "
                                       "the run; --warmup-ratio is for its beginning)"));
}

TEST(ConfigAutoTest, WhatACommitHoldsMayBeAnything) {
  for (const char* stored :
       {"", "x", "[]", "{}", R"({"optimizer": 3})", R"({"optimizer": {"params": {"betas": 3}}})"}) {
    const Result<Config> config = ParseConfig({{"ds.json", kTransformers}}, 1, {.resumed = stored});
    if (config.ok()) continue;
    EXPECT_THAT(config.error().message, HasSubstr("optimizer.params.betas"));
  }
  EXPECT_THAT(Good(WithBatch("")).automatic, Each(Not(AutomaticKey{})));
}

TEST(ConfigAutoTest, APrecisionThatNothingDecidedIsSaid) {
  const auto says = [](const Config& config) {
    std::vector<std::string> found;
    for (const std::string& line : NoticesOf(config)) {
      if (line.find("precision") != std::string::npos) found.push_back(line);
    }
    return found;
  };
  EXPECT_THAT(says(With({})), ElementsAre(StartsWith("config: precision: fp32; --bf16 "
                                                     "halves")));
  EXPECT_THAT(says(With({.flags = {.bf16 = true}})), IsEmpty());
  EXPECT_THAT(says(Good(WithBatch(""))), IsEmpty());
  EXPECT_THAT(says(Good(WithBatch(R"("bf16": {"enabled": false})"))), IsEmpty());
  EXPECT_THAT(says(Good(WithBatch(R"("bf16": {"enabled": true}, "fp16": {"enabled": "auto"})"))),
              IsEmpty());
}

}  // namespace
}  // namespace penstock::config
