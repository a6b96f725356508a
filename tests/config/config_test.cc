// What a good configuration means: defaults, homes, merging, round trips. Batches, "auto" and
// superseded keys have files of their own.
#include "config/config.h"

#include <gmock/gmock.h>

#include "config/to_json.h"
#include "tests/config/config_test_util.h"

namespace penstock::config {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(ConfigTest, DefaultsAreDeepSpeeds) {
  const Config config = Good(WithBatch(""));
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_EQ(config.dtype, kernels::DType::kFloat32);
  EXPECT_FALSE(config.check_grad_overflow);
  EXPECT_EQ(config.optimizer.type, "AdamW");
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  EXPECT_EQ(AdamOf(config).beta1, 0.9);
  EXPECT_EQ(AdamOf(config).beta2, 0.999);
  EXPECT_EQ(AdamOf(config).eps, 1e-8);
  EXPECT_EQ(AdamOf(config).weight_decay, 0);
  EXPECT_TRUE(AdamOf(config).adam_w_mode);
  EXPECT_TRUE(AdamOf(config).bias_correction);
  EXPECT_EQ(config.scheduler.type, SchedulerType::kNone);
  EXPECT_EQ(config.zero_stage, 0);
  EXPECT_EQ(config.parameter_home, Tier::kDevice);
  EXPECT_EQ(config.optimizer_home, Tier::kDevice);
  EXPECT_EQ(config.tile_elements, 1048576u);
  EXPECT_EQ(config.aio.block_size, 1_MiB);
  EXPECT_EQ(config.aio.queue_depth, 8);
  EXPECT_EQ(config.aio.thread_count, 1);
  EXPECT_FALSE(config.aio.single_submit);
  EXPECT_TRUE(config.aio.overlap_events);
  EXPECT_EQ(config.aio.kind, aio::EngineKind::kAuto);
  EXPECT_FALSE(config.aio.simulate.has_value());
  EXPECT_FALSE(config.device_memory.has_value());
  EXPECT_EQ(config.commit_every_steps, 0);
  EXPECT_EQ(config.commit_every_seconds, 300);
  EXPECT_EQ(config.heartbeat_seconds, 30);
  EXPECT_EQ(config.comm_timeout_seconds, 600);
  EXPECT_EQ(config.gradient_order, GradientOrder::kGlobal);
  EXPECT_EQ(config.attention, AttentionChoice::kAuto);
  EXPECT_TRUE(config.tier_split && config.overlap && config.durable && config.verify_checksums);
  EXPECT_EQ(config.verify_commits, VerifyCommits::kAuto);
  EXPECT_THAT(config.superseded, IsEmpty());
  EXPECT_THAT(PathsOf(config.automatic), ElementsAre("optimizer"));
}

TEST(ConfigTest, GradientsAreSentInFp32UnlessBf16IsAskedFor) {
  EXPECT_EQ(Good(WithBatch("")).communication, kernels::DType::kFloat32);
  for (const char* exact : {"null", R"("fp32")", R"("auto")"}) {
    const std::string key = fmt::format(R"("communication_data_type": {})", exact);
    EXPECT_EQ(Good(WithBatch(key + R"(, "bf16": {"enabled": true})")).communication,
              kernels::DType::kFloat32);
  }
  const Config rounded = Good(WithBatch(R"("communication_data_type": "bf16")"));
  EXPECT_EQ(rounded.communication, kernels::DType::kBFloat16);
  EXPECT_EQ(Good(ConfigToJson(rounded)).communication, kernels::DType::kBFloat16);
}

TEST(ConfigTest, Fp16HasDeepSpeedsLossScaleAndAlwaysChecksGradients) {
  EXPECT_FALSE(Good(WithBatch(R"("fp16": {"loss_scale": 4})")).loss_scaling);
  const Config config = Good(WithBatch(R"("fp16": {"enabled": true})"));
  EXPECT_EQ(config.dtype, kernels::DType::kFloat16);
  EXPECT_TRUE(config.check_grad_overflow);
  ASSERT_TRUE(config.loss_scaling);
  EXPECT_EQ(config.loss_scaling->loss_scale, 0);
  EXPECT_EQ(config.loss_scaling->initial_scale_power, 16);
  EXPECT_EQ(config.loss_scaling->loss_scale_window, 1000);
  EXPECT_EQ(config.loss_scaling->hysteresis, 2);
  EXPECT_FALSE(config.loss_scaling->consecutive_hysteresis);
  EXPECT_EQ(config.loss_scaling->min_loss_scale, 1);
  const Config other =
      Good(WithBatch(R"("fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 4,
          "loss_scale_window": 5, "hysteresis": 3, "consecutive_hysteresis": true,
          "min_loss_scale": 0.5, "auto_cast": true}, "data_types": {"grad_accum_dtype": "fp16"},
          "communication_data_type": "fp16")"));
  EXPECT_EQ(other.loss_scaling->initial_scale_power, 4);
  EXPECT_EQ(other.loss_scaling->loss_scale_window, 5);
  EXPECT_EQ(other.loss_scaling->hysteresis, 3);
  EXPECT_TRUE(other.loss_scaling->consecutive_hysteresis);
  EXPECT_EQ(other.loss_scaling->min_loss_scale, 0.5);
  EXPECT_EQ(other.communication, kernels::DType::kFloat16);
}

TEST(ConfigTest, ReadsPrecision) {
  EXPECT_EQ(Good(WithBatch(R"("bf16": {"enabled": true})")).dtype, kernels::DType::kBFloat16);
  EXPECT_TRUE(Good(WithBatch(R"("bf16": {"enabled": true})")).check_grad_overflow);
  const char* unchecked = R"("bfloat16": {"enabled": true, "check_grad_overflow": false})";
  EXPECT_EQ(Good(WithBatch(unchecked)).dtype, kernels::DType::kBFloat16);
  EXPECT_FALSE(Good(WithBatch(unchecked)).check_grad_overflow);
  EXPECT_FALSE(Good(WithBatch(R"("bf16": {"check_grad_overflow": true})")).check_grad_overflow);
  Good(WithBatch(R"("bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "bf16"})"));
  Good(WithBatch(R"("data_types": {"grad_accum_dtype": "fp32", "buffer_dtype": null})"));
}

TEST(ConfigTest, ReadsSchedulers) {
  const auto scheduler = [](const std::string& section) {
    return Good(WithBatch("\"scheduler\": " + section)).scheduler;
  };
  const SchedulerConfig plain = scheduler(R"({"type": "WarmupLR"})");
  EXPECT_EQ(plain.type, SchedulerType::kWarmupLr);
  EXPECT_FALSE(plain.warmup_max_lr.has_value());
  EXPECT_EQ(plain.warmup_num_steps, 1000);
  EXPECT_EQ(plain.warmup_type, WarmupType::kLog);
  const SchedulerConfig decay = scheduler(
      R"({"type": "WarmupDecayLR", "params": {"total_num_steps": 50, "warmup_num_steps": 1,
          "warmup_type": "linear", "warmup_min_lr": 0.1}})");
  EXPECT_EQ(decay.type, SchedulerType::kWarmupDecayLr);
  EXPECT_EQ(decay.total_num_steps, 50);
  EXPECT_EQ(decay.warmup_num_steps, 2);
  EXPECT_EQ(decay.warmup_type, WarmupType::kLinear);
  EXPECT_EQ(decay.warmup_min_lr, 0.1);
  EXPECT_EQ(decay.warmup_max_lr, 1e-3);
  const SchedulerConfig cosine = scheduler(
      R"({"type": "WarmupCosineLR", "params": {"total_num_steps": 50, "cos_min_ratio": 0.5}})");
  EXPECT_EQ(cosine.type, SchedulerType::kWarmupCosineLr);
  EXPECT_EQ(cosine.cos_min_ratio, 0.5);
  EXPECT_EQ(cosine.warmup_min_ratio, 0);
  EXPECT_EQ(scheduler("null").type, SchedulerType::kNone);
  EXPECT_EQ(scheduler(R"({"type": null})").type, SchedulerType::kNone);
}

TEST(ConfigTest, ReadsHomes) {
  const Config nvme = Good(WithBatch(
      R"("zero_optimization": {"stage": 3,
          "offload_param": {"device": "nvme", "nvme_path": "/drive"},
          "offload_optimizer": {"device": "nvme", "nvme_path": "/drive"}})"));
  EXPECT_EQ(nvme.zero_stage, 3);
  EXPECT_EQ(nvme.parameter_home, Tier::kNvme);
  EXPECT_EQ(nvme.optimizer_home, Tier::kNvme);
  EXPECT_THAT(nvme.nvme_paths, ElementsAre("/drive"));
  const Config mixed = Good(WithBatch(
      R"("zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "nvme_path": "/x"},
          "offload_optimizer": {"device": "nvme", "nvme_path": "/drive"}})"));
  EXPECT_EQ(mixed.parameter_home, Tier::kHost);
  EXPECT_THAT(mixed.nvme_paths, ElementsAre("/drive"));
  EXPECT_THAT(PathsOf(mixed.superseded), ElementsAre("zero_optimization.offload_param.nvme_path"));
  const Config stage1 = Good(WithBatch(
      R"("zero_optimization": {"stage": 1, "offload_param": null,
          "offload_optimizer": {"device": "cpu"}})"));
  EXPECT_EQ(stage1.parameter_home, Tier::kDevice);
  EXPECT_EQ(stage1.optimizer_home, Tier::kHost);
  EXPECT_THAT(stage1.nvme_paths, IsEmpty());
  EXPECT_EQ(Good(WithBatch(R"("zero_optimization": true)")).zero_stage, 1);
}

TEST(ConfigTest, ReadsSeveralDrives) {
  const Config config = Good(WithBatch(
      R"("zero_optimization": {"stage": 3,
          "offload_param": {"device": "nvme", "nvme_path": ["/b", "/a"]},
          "offload_optimizer": {"device": "nvme", "nvme_path": ["/b", "/a"]}})"));
  EXPECT_THAT(config.nvme_paths, ElementsAre("/b", "/a"));
  EXPECT_THAT(Good(ConfigToJson(config)).nvme_paths, ElementsAre("/b", "/a"));
  const Config one = Good(WithBatch(
      R"("zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "nvme_path": ["/x"]},
          "offload_optimizer": {"device": "nvme", "nvme_path": ["/drive"]}})"));
  EXPECT_THAT(one.nvme_paths, ElementsAre("/drive"));
  EXPECT_THAT(PathsOf(one.superseded), ElementsAre("zero_optimization.offload_param.nvme_path"));
}

TEST(ConfigTest, TilesAreBoundedBySubGroupsInWholeBlocks) {
  const auto tile = [](const std::string& sub_group, const std::string& own) {
    return Good(WithBatch("\"zero_optimization\": {\"sub_group_size\": " + sub_group +
                          "}, \"penstock\": {\"tile_elements\": " + own + "}"))
        .tile_elements;
  };
  EXPECT_EQ(tile("1e9", "8192"), 8192u);
  EXPECT_EQ(tile("10000", "1048576"), 8192u);
  EXPECT_EQ(tile("0", "1048576"), 4096u);
  EXPECT_EQ(tile("\"auto\"", "2000003072"), 999997440u);
}

TEST(ConfigTest, ReadsPenstockAndAio) {
  const Config config = Good(WithBatch(
      R"("aio": {"block_size": 65536, "queue_depth": 16, "intra_op_parallelism": 4,
                 "num_threads": 4, "single_submit": true, "overlap_events": false,
                 "use_gds": false},
         "penstock": {"device_memory": "64MiB", "host_memory": 1e9, "overlap": false,
                      "tier_split": false,
                      "schedule": "vertical", "activation_home": "device", "optimizer_threads": 3,
                      "compute_threads": 2, "commit_every_steps": 5, "commit_every_seconds": 1.5,
                      "durable": false, "verify_checksums": false, "verify_commits": true,
                      "heartbeat_seconds": 2,
                      "comm_timeout_seconds": 1e6, "gradient_order": "rank", "attention": "own",
                      "aio": {"engine": "io_uring", "sqpoll": true, "iopoll": true,
                              "registered_buffers": "auto",
                              "simulate": {"read_gbps": 2.5, "write_gbps": 1, "shared": true,
                                           "latency_us": 80}}})"));
  EXPECT_EQ(config.aio.block_size, 64_KiB);
  EXPECT_EQ(config.aio.queue_depth, 16);
  EXPECT_EQ(config.aio.thread_count, 4);
  EXPECT_TRUE(config.aio.single_submit);
  EXPECT_FALSE(config.aio.overlap_events);
  EXPECT_EQ(config.device_memory, 64_MiB);
  EXPECT_EQ(config.host_memory, Bytes{1000000000});
  EXPECT_FALSE(config.tier_split || config.overlap || config.durable || config.verify_checksums);
  EXPECT_EQ(config.verify_commits, VerifyCommits::kOn);
  EXPECT_EQ(config.optimizer_threads, 3);
  EXPECT_EQ(config.compute_threads, 2);
  EXPECT_EQ(config.commit_every_steps, 5);
  EXPECT_EQ(config.commit_every_seconds, 1.5);
  EXPECT_EQ(config.heartbeat_seconds, 2);
  EXPECT_EQ(config.comm_timeout_seconds, 1000000);
  EXPECT_EQ(config.gradient_order, GradientOrder::kRank);
  EXPECT_EQ(config.attention, AttentionChoice::kOwn);
  EXPECT_EQ(config.aio.kind, aio::EngineKind::kUring);
  ASSERT_TRUE(config.aio.simulate.has_value());
  EXPECT_EQ(config.aio.simulate->read_gbps, 2.5);
  EXPECT_EQ(config.aio.simulate->write_gbps, 1);
  EXPECT_TRUE(config.aio.simulate->shared);
  EXPECT_EQ(config.aio.simulate->latency_us, 80);
  EXPECT_TRUE(config.aio.sqpoll && config.aio.iopoll);
  EXPECT_EQ(config.aio.registered_buffers, aio::Registration::kAuto);
  EXPECT_THAT(PathsOf(config.automatic), Not(Contains(HasSubstr("registered_buffers"))));
}

TEST(ConfigTest, CheckpointsAreAtHomeOnTheHostWhereEitherKeySaysSo) {
  EXPECT_EQ(Good(WithBatch(R"("penstock": {"activation_home": "device"})")).activation_home,
            Tier::kDevice);
  for (const char* text : {R"("penstock": {"activation_home": "host"})",
                           R"("activation_checkpointing": {"cpu_checkpointing": true})"}) {
    EXPECT_EQ(Good(WithBatch(text)).activation_home, Tier::kHost) << text;
  }
}

TEST(ConfigTest, RegisteredBuffersAreAutoTrueOrFalse) {
  const auto read = [](const std::string& value) {
    return Good(WithBatch(R"("penstock": {"aio": {"registered_buffers": )" + value + "}}"))
        .aio.registered_buffers;
  };
  EXPECT_EQ(read("\"auto\""), aio::Registration::kAuto);
  EXPECT_EQ(read("true"), aio::Registration::kOn);
  EXPECT_EQ(read("false"), aio::Registration::kOff);
}

TEST(ConfigTest, LaterSourcesOverrideKeyByKey) {
  const ConfigSource base = {"base.json",
                             R"({"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.5,
          "optimizer": {"type": "AdamW", "params": {"lr": 0.5, "betas": [0.1, 0.2]}}})"};
  const ConfigSource more = {"more.json",
                             "{\n\"optimizer\": {\"params\":\n  {\"betas\": [0.3, 0.4]}}}"};
  const Result<Config> config = ParseConfig({base, more}, 1);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->gradient_clipping, 0.5);
  EXPECT_EQ(config->optimizer.lr, 0.5);
  EXPECT_EQ(AdamOf(*config).beta1, 0.3);
  EXPECT_EQ(AdamOf(*config).beta2, 0.4);
  // Only the whole is checked, and a message names the text that supplied the key.
  const ConfigSource bad = {"bad.json", "{\"gradient_clipping\": -1}"};
  EXPECT_TRUE(ParseConfig({bad, base}, 1).ok());
  const Result<Config> refused = ParseConfig({base, bad}, 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("bad.json:1: gradient_clipping: "));
  const ConfigSource typo = {"typo.json", "{\n\n\"optimizer\": {\"parms\": {}}}"};
  const Result<Config> unknown = ParseConfig({base, typo}, 1);
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().message,
            "typo.json:3: unknown key \"optimizer.parms\"; did you mean \"optimizer.params\"?");
}

TEST(ConfigTest, JsonOfAConfigGivesTheSameConfig) {
  const char* const kTexts[] = {
      R"("optimizer": {"type": "Adam", "params": {"lr": 0.1, "betas": [0.3, 0.7], "eps": 1e-5,
             "weight_decay": 0.01, "bias_correction": false, "adam_w_mode": false}},
         "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 77,
             "warmup_num_steps": 9, "warmup_type": "linear", "warmup_min_ratio": 0.2,
             "cos_min_ratio": 0.3}},
         "gradient_accumulation_steps": 3, "gradient_clipping": 0.7, "steps_per_print": 6,
         "bf16": {"enabled": true, "check_grad_overflow": false},
         "zero_optimization": {"stage": 3, "sub_group_size": 2e9,
             "offload_param": {"device": "nvme", "nvme_path": "/a b\"c"},
             "offload_optimizer": {"device": "nvme", "nvme_path": "/a b\"c"}},
         "aio": {"block_size": 8192, "queue_depth": 3, "thread_count": 2, "single_submit": true,
                 "overlap_events": false},
         "penstock": {"device_memory": "1GiB", "host_memory": 12345, "tile_elements": 1500000256,
             "tier_split": false, "overlap": false, "activation_home": "host",
             "optimizer_threads": 3, "compute_threads": 4,
             "commit_every_steps": 8, "commit_every_seconds": 0.25, "durable": false,
             "verify_checksums": false, "verify_commits": false, "heartbeat_seconds": 7,
             "comm_timeout_seconds": 77,
             "gradient_order": "rank", "attention": "cudnn", "rampup_batch_size": [2, 4, 1000000000000],
             "aio": {"engine": "threads", "registered_buffers": false,
             "simulate": {"read_gbps": 1.1, "write_gbps": 2.2, "shared": true, "latency_us": 3}}})",
      R"("scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-7}})",
      R"("optimizer": {"type": "lion", "params": {"lr": 3, "betas": [0.3, 0.7],
             "weight_decay": 0.01}}, "bf16": {"enabled": true, "bf16_optimizer_states": true})",
      R"("optimizer": {"type": "Lamb", "params": {"lr": 0.2, "betas": [0.3, 0.7], "eps": 3,
             "weight_decay": 0.5, "bias_correction": false, "max_coeff": 4, "min_coeff": 0.5}})",
      R"("optimizer": {"type": "Adagrad", "params": {"lr_decay": 0.2, "eps": 3,
             "weight_decay": 0.01, "initial_accumulator_value": 4}})",
      R"("scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 5}},
         "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}})"};
  for (const char* text : kTexts) {
    SCOPED_TRACE(text);
    const Config first = Good(WithBatch(text), 2);
    const std::string json = ConfigToJson(first);
    const Config second = Good(json, 2);
    EXPECT_EQ(ConfigToJson(second), json);
    EXPECT_THAT(second.superseded, IsEmpty());
    EXPECT_THAT(second.automatic, IsEmpty());
  }
  // Not only equal to itself: the values are the ones that were written.
  const Config config = Good(ConfigToJson(Good(WithBatch(kTexts[0]), 2)), 2);
  EXPECT_EQ(config.train_batch_size, 6u);
  EXPECT_EQ(AdamOf(config).eps, 1e-5);
  EXPECT_FALSE(AdamOf(config).adam_w_mode);
  EXPECT_EQ(config.scheduler.total_num_steps, 77);
  EXPECT_EQ(config.scheduler.warmup_min_ratio, 0.2);
  EXPECT_EQ(config.dtype, kernels::DType::kBFloat16);
  EXPECT_FALSE(config.check_grad_overflow);
  EXPECT_THAT(config.nvme_paths, ElementsAre("/a b\"c"));
  EXPECT_EQ(config.tile_elements, 1500000256u);
  EXPECT_EQ(config.aio.kind, aio::EngineKind::kThreads);
  EXPECT_EQ(config.aio.registered_buffers, aio::Registration::kOff);
  EXPECT_EQ(config.aio.simulate->latency_us, 3);
  EXPECT_EQ(config.host_memory, Bytes{12345});
  EXPECT_EQ(config.commit_every_seconds, 0.25);
  EXPECT_EQ(config.heartbeat_seconds, 7);
  EXPECT_EQ(config.comm_timeout_seconds, 77);
  EXPECT_EQ(config.gradient_order, GradientOrder::kRank);
  EXPECT_EQ(config.attention, AttentionChoice::kCudnn);
  EXPECT_EQ(config.rampup->start, 2u);
  EXPECT_EQ(config.rampup->increment, 4u);
  EXPECT_EQ(config.rampup->samples, 1000000000000u);
}

}  // namespace
}  // namespace penstock::config
