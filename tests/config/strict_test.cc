// What a configuration is refused for, and that the message says where, why and what to do.
#include <gmock/gmock.h>

#include "config/to_json.h"
#include "tests/config/config_test_util.h"

namespace penstock::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(ConfigStrictTest, BrokenJsonGivesSourceLineAndColumn) {
  EXPECT_THAT(Refused("{\n  \"a\": 1,\n  \"b\" 2\n}"),
              StartsWith("ds.json:3:7: not valid JSON: unexpected '2'"));
  EXPECT_THAT(Refused(""), StartsWith("ds.json:1:1: not valid JSON: it ends too soon"));
  EXPECT_THAT(Refused("{\"a\": 1;}"), StartsWith("ds.json:1:8: not valid JSON: unexpected ';'"));
  EXPECT_THAT(Refused("{\n\"a\": 1e400}"),
              AllOf(StartsWith("ds.json:2:"), HasSubstr("a number is beyond all bounds")));
  EXPECT_THAT(Refused("{\"gradient_clipping\": NaN}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(Refused("{\"a\": \"\xff\"}"), HasSubstr("not valid JSON"));
  EXPECT_LT(Refused("{\"a\": \"" + std::string(100000, 'x')).size(), 400u);
}

TEST(ConfigStrictTest, ACommaBeforeTheEndIsFoundWhereItStands) {
  const std::pair<const char*, const char*> kCases[] = {
      {"{\"a\": 1,}", "ds.json:1:8: not valid JSON: a comma before }; remove it"},
      {"{\"a\": [1,\n 2,  \n\n ]}", "ds.json:2:3: not valid JSON: a comma before ]; remove it"},
      {"{\"a\": {\n},\n// b\n/* c, */ // \"\n}",
       "ds.json:2:2: not valid JSON: a comma before }; remove it"},
      {R"({"a\"//": ",", /* "}" */})", "ds.json:1:14: not valid JSON: a comma before }; remove it"},
  };
  for (const auto& [text, expected] : kCases) EXPECT_EQ(Refused(text), expected);
  for (const char* other : {"}", "{\"a\": \",\"; }", "{\"a\" }", "{\"a\": /* , */ }", "{,"}) {
    EXPECT_THAT(Refused(other), Not(HasSubstr("a comma before")));
  }
}

TEST(ConfigStrictTest, TheRootIsAnObject) {
  EXPECT_EQ(Refused("[1]"), "ds.json: the configuration must be a JSON object, not array");
  EXPECT_EQ(Refused("3"), "ds.json: the configuration must be a JSON object, not number");
}

TEST(ConfigStrictTest, NestingIsBounded) {
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "{\"a\":";
  EXPECT_THAT(Refused(deep + "1" + std::string(100000, '}')), HasSubstr("nested deeper than 64"));
}

TEST(ConfigStrictTest, CommentsAreAllowed) {
  EXPECT_EQ(Good("// one\n{/* two */ \"train_batch_size\": 4 // three\n}").train_batch_size, 4u);
}

TEST(ConfigStrictTest, DuplicateKeysAreRefusedInEveryObject) {
  EXPECT_EQ(
      Refused("{\"aio\": {\"block_size\": 4096,\n\"queue_depth\": 1,\n\"block_size\": 8192}}"),
      "ds.json:3: duplicate key \"aio.block_size\" (first on line 1); keep one of them");
  EXPECT_THAT(Refused("{\"aio\": {}, \"aio\": {}}"), HasSubstr("duplicate key \"aio\""));
  EXPECT_THAT(Refused("{\"x\": [{\"y\": 1, \"y\": 2}]}"), HasSubstr("duplicate key \"x.[].y\""));
  // The same name in two objects is none, nor are equal values in a list.
  Good(WithBatch(R"("tensorboard": {"enabled": false}, "wandb": {"enabled": false},
                    "optimizer": {"type": "Adam", "params": {"betas": [0.5, 0.5]}})"));
}

TEST(ConfigStrictTest, UnknownKeysNameTheirPathAndTheNearestKnownOne) {
  EXPECT_EQ(Refused(WithBatch("\"zero_optimization\": {\n\"stag\": 3}")),
            "ds.json:3: unknown key \"zero_optimization.stag\"; did you mean "
            "\"zero_optimization.stage\"?");
  const std::pair<const char*, const char*> kCases[] = {
      {R"("gradient_cliping": 1)", "did you mean \"gradient_clipping\"?"},
      {R"("Gradient_Clipping": 1)", "did you mean \"gradient_clipping\"?"},
      {R"("micro_batch_size": 1)", "did you mean \"train_micro_batch_size_per_gpu\"?"},
      {R"("aio": {"queue_dept": 1})", "did you mean \"aio.queue_depth\"?"},
      {R"("penstock": {"aio": {"engin": 1}})", "did you mean \"penstock.aio.engine\"?"},
      {R"("optimizer": {"type": "Adam", "params": {"learning_rate": 1}})",
       "docs/config.md lists the known ones"},
      // Right key, wrong object.
      {R"("zero_optimization": {"gradient_clipping": 1})", "did you mean \"gradient_clipping\"?"},
      {R"("zero_optimization": {"queue_depth": 1})", "did you mean \"aio.queue_depth\"?"},
      {R"("zero_optimization": {"offload_optimizer": {"buffer_size": 1}})",
       "did you mean \"zero_optimization.offload_param.buffer_size\"?"},
      {R"("zero_optimization.stage": 3)", "write it as objects, one in the other"},
      {R"("total_nonsense": 3)", "docs/config.md lists the known ones"},
      {R"("scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 3}})",
       "unknown key \"scheduler.params.total_num_steps\""},
      {R"("fp16": {"loss_scales": 3})", "did you mean \"fp16.loss_scale\"?"},
      {R"("": 3)", "unknown key \"\""},
      {R"("line\nbreak": 3)", "unknown key \"line\\nbreak\""},
  };
  for (const auto& [text, expected] : kCases) {
    EXPECT_THAT(Refused(WithBatch(text)), AllOf(HasSubstr("unknown key"), HasSubstr(expected)));
  }
}

TEST(ConfigStrictTest, WrongTypesAndRangesNameTheKeyAndWhatIsAllowed) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"("gradient_clipping": "1")", "gradient_clipping: expected a number, got \"1\""},
      {R"("gradient_clipping": -1)", "gradient_clipping: -1 is not in [0, infinity)"},
      {R"("gradient_clipping": true)", "gradient_clipping: expected a number, got true"},
      {R"("gradient_clipping": null)", "gradient_clipping: expected a number, got null"},
      {R"("steps_per_print": 1.5)", "steps_per_print: 1.5 is not an integer in [0, "},
      {R"("steps_per_print": 1e19)", "steps_per_print: 1e+19 is not an integer in [0, "},
      {R"("steps_per_print": 18446744073709551615)", "is not an integer in [0, "},
      {R"("steps_per_print": -1)", "steps_per_print: -1 is not an integer in [0, "},
      {R"("bf16": {"enabled": "true"})",
       "bf16.enabled: expected true or false, got \"true\"; remove the quotes"},
      {R"("bf16": {"enabled": 1})", "bf16.enabled: expected true or false, got 1"},
      {R"("bf16": true)", "bf16: expected an object, got true"},
      {R"("optimizer": {"params": {"lr": -0.1}})", "optimizer.params.lr: -0.1 is not in [0, inf"},
      {R"("optimizer": {"params": {"betas": [0.9, 1]}})",
       "optimizer.params.betas: expected two numbers in [0, 1), got [0.9,1]"},
      {R"("optimizer": {"params": {"betas": [-0.1, 0.9]}})", "expected two numbers in [0, 1)"},
      {R"("optimizer": {"params": {"betas": [0.9]}})", "expected two numbers in [0, 1)"},
      {R"("optimizer": {"params": {"betas": {"a": 1, "b": 2}}})", "expected two numbers in [0, 1)"},
      {R"("optimizer": {"params": {"eps": -1e-8}})", "optimizer.params.eps: -1e-08 is not in"},
      {R"("optimizer": {"params": {"weight_decay": -1}})", "weight_decay: -1 is not in"},
      {R"("optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}})",
       "adam_w_mode: false contradicts optimizer.type AdamW"},
      {R"("scheduler": {"type": "WarmupLR", "params": {"warmup_type": "cubic"}})",
       "\"cubic\" is not one of \"log\" \"linear\""},
      {R"("scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": -1}})",
       "not an integer"},
      {R"("scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": null}})",
       "scheduler.params.total_num_steps: missing, and it has no default"},
      {R"("scheduler": {"type": "WarmupCosineLR", "params": {"cos_min_ratio": 1.5}})",
       "scheduler.params.cos_min_ratio: 1.5 is not in [0, 1]"},
      {R"("scheduler": {"type": "WarmupCosineLR"})", "scheduler.params.total_num_steps: missing"},
      {R"("zero_optimization": {"stage": 4})", "stage: 4 is not an integer in [0, 3]"},
      {R"("zero_optimization": {"offload_param": {"device": "disk"}})",
       "\"disk\" is not one of \"none\" \"cpu\" \"nvme\""},
      {R"("aio": {"block_size": 4097})", "aio.block_size: 4097 is not a multiple of 4096"},
      {R"("aio": {"queue_depth": 0})", "aio.queue_depth: 0 is not an integer in [1, 4096]"},
      {R"("penstock": {"tile_elements": 5000})", "5000 is not a multiple of 4096"},
      {R"("penstock": {"tile_elements": 0})", "tile_elements: 0 is not an integer in [4096, "},
      {R"("penstock": {"device_memory": "64MB"})",
       "\"64MB\" is not a size above 0; write \"64MiB\""},
      {R"("penstock": {"device_memory": 0})", "device_memory: 0 is not a size above 0"},
      {R"("penstock": {"host_memory": 1.5})", "host_memory: 1.5 is not a size above 0"},
      {R"("penstock": {"commit_every_seconds": -1})", "commit_every_seconds: -1 is not in"},
      {R"("penstock": {"heartbeat_seconds": 1})",
       "penstock.heartbeat_seconds: 1 is not an integer in [2, 1000000]"},
      {R"("penstock": {"comm_timeout_seconds": 2.5})",
       "penstock.comm_timeout_seconds: 2.5 is not an integer in [2, 1000000]"},
      {R"("penstock": {"aio": {"simulate": {"read_gbps": -1}}})", "simulate.read_gbps: -1 is not"},
      {R"("penstock": {"aio": {"engine": "posix"}})",
       "\"posix\" is not one of \"auto\" \"io_uring\""},
  };
  for (const auto& [text, expected] : kCases) {
    EXPECT_THAT(Refused(WithBatch(text)), AllOf(StartsWith("ds.json:"), HasSubstr(expected)));
  }
}

TEST(ConfigStrictTest, WhatIsNotImplementedSaysHowToTurnItOff) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"("fp16": {"enabled": true, "fp16_master_weights_and_grads": true})",
       "fp16.fp16_master_weights_and_grads: true is not implemented; set it to false"},
      {R"("fp16": {"enabled": true}, "bf16": {"enabled": true})", "bf16 is enabled as well"},
      {R"("bf16": {"enabled": true}, "bfloat16": {"enabled": true})", "bfloat16: bf16 is given"},
      {R"("bf16": {"enabled": true, "bf16_master_weights_and_grads": true})", "set it to false"},
      {R"("data_types": {"grad_accum_dtype": "bf16"})", "set it to null or \"fp32\""},
      {R"("bf16": {"enabled": true}, "data_types": {"param_dtype": "fp32"})",
       "data_types.param_dtype: \"fp32\" is not implemented; set it to null or \"bf16\""},
      {R"("amp": {"enabled": true, "opt_level": "O1"})", "amp.enabled: true is not implemented"},
      {R"("torch_autocast": {"enabled": true})", "torch_autocast.enabled: true is not implemented"},
      {R"("prescale_gradients": true)", "prescale_gradients: true is not implemented; set it to f"},
      {R"("gradient_predivide_factor": 2)", "2 is not implemented; set it to 1.0"},
      {R"("communication_data_type": "fp16")",
       "communication_data_type: \"fp16\" needs fp16.enabled, whose loss scale"},
      {R"("communication_data_type": "int8")", "set it to \"fp32\", \"bf16\", \"fp16\" or null"},
      {R"("gradient_allreduce_op": "sum")", "set it to \"mean\""},
      {R"("sparse_gradients": true)", "not implemented"},
      {R"("elasticity": {"enabled": true})", "elasticity.enabled: true is not implemented"},
      {R"("curriculum_learning": {"enabled": true})", "not implemented"},
      {R"("autotuning": {"enabled": true})", "penstock tune"},
      {R"("compression_training": {"weight_quantization": {"shared_parameters":
          {"enabled": true}}})",
       "compression_training.weight_quantization.shared_parameters.enabled: this feature is not"},
      {R"("pipeline": {"stages": 2})", "pipeline.stages: 2 is not implemented; set it to \"auto\""},
      {R"("tensorboard": {"enabled": true})",
       "tensorboard.enabled: true is not implemented; set it to false; csv_monitor writes the "
       "curves, and metrics.jsonl"},
      {R"("wandb": {"enabled": true})", "csv_monitor writes the curves"},
      {R"("aio": {"use_gds": true})", "aio.use_gds: true is not implemented; set it to false"},
      {R"("optimizer": {"type": "Muon"})", "\"Muon\" is not implemented; set it to \"AdamW\""},
      {R"("optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 400}})",
       "optimizer.type: \"OneBitAdam\" is not implemented: it compresses communication, and one "
       "rank has nothing to compress; set it to \"AdamW\", which is the same rule before "
       "freeze_step"},
      {R"("optimizer": {"type": "ZeroOneAdam"})", "compresses communication"},
      {R"("optimizer": {"type": "OneBitLamb"})",
       "set it to \"Lamb\", which is the same rule before freeze_step"},
      {R"("optimizer": {"type": "Lamb", "params": {"eps_inside_sqrt": true}})", "set it to false"},
      {R"("optimizer": {"type": "Lamb", "params": {"amsgrad": true}})", "set it to false"},
      {R"("optimizer": {"type": "Lamb", "params": {"adam_w_mode": true}})",
       "optimizer.params.adam_w_mode: Lamb has no such parameter; remove it"},
      {R"("optimizer": {"type": "Lamb", "params": {"min_coeff": 11}})",
       "optimizer.params.min_coeff: 11 is above max_coeff 10"},
      {R"("optimizer": {"params": {"max_coeff": 10}})", "max_coeff: Adam has no such parameter"},
      {R"("optimizer": {"type": "Lion", "params": {"eps": 1e-8}})",
       "optimizer.params.eps: Lion has no such parameter; remove it"},
      {R"("optimizer": {"type": "Adagrad", "params": {"betas": [0.9, 0.9]}})",
       "optimizer.params.betas: Adagrad has no such parameter"},
      {R"("optimizer": {"params": {"lr_decay": 1}})", "lr_decay: Adam has no such parameter"},
      {R"("optimizer": {"type": "Adagrad", "params": {"initial_accumulator_value": 1e39}})",
       "initial_accumulator_value: 1e+39 is not in"},
      {R"("optimizer": {"type": "Lion", "params": {"fp32_optimizer_states": false}})",
       "false is written as bf16.bf16_optimizer_states true"},
      {R"("bf16": {"enabled": true, "bf16_optimizer_states": true},
          "optimizer": {"params": {"fp32_optimizer_states": true}})",
       "true contradicts bf16.bf16_optimizer_states"},
      {R"("optimizer": {"type": "Adagrad", "params": {"amsgrad": true}})", "set it to false"},
      {R"("optimizer": {"type": "Adam", "params": {"amsgrad": true}})", "set it to false"},
      {R"("optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}})", "gradient_clipping"},
      {R"("scheduler": {"type": "StepLR"})", "\"StepLR\" is not implemented; set it to"},
      {R"("zero_optimization": {"zenflow": {"topk_ratio": 0.1}})", "is not implemented; remove it"},
      {R"("zero_optimization": {"zero_quantized_weights": true})", "set it to false"},
      {R"("zero_optimization": {"mics_shard_size": 2})", "set it to -1"},
      {R"("zero_optimization": {"cpu_offload": true})", "write offload_optimizer"},
      {R"("zero_optimization": {"offload_optimizer": {"ratio": 0.5}})", "set it to 1.0"},
      {R"("zero_optimization": {"offload_optimizer": {"super_offload": true}})", "set it to false"},
      {R"("penstock": {"schedule": "horizontal"})",
       "penstock.schedule: \"horizontal\" is not implemented; set it to \"vertical\""},
  };
  for (const auto& [text, expected] : kCases) {
    EXPECT_THAT(Refused(WithBatch(text)), AllOf(StartsWith("ds.json:"), HasSubstr(expected)));
  }
}

TEST(ConfigStrictTest, ALossScaleThatCannotBeIsRefusedWhereFp16IsOn) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"("loss_scale": -1)", "fp16.loss_scale: -1 is not in [0,"},
      {R"("initial_scale_power": 128)", "fp16.initial_scale_power: 128 is not an integer in [0, 1"},
      {R"("loss_scale_window": 0)", "fp16.loss_scale_window: 0 is not an integer in [1,"},
      {R"("hysteresis": 0)", "fp16.hysteresis: 0 is not an integer in [1,"},
      {R"("consecutive_hysteresis": 1)", "fp16.consecutive_hysteresis"},
      {R"("min_loss_scale": 0)", "fp16.min_loss_scale: 0 is not in ["},
      {R"("initial_scale_power": 4, "min_loss_scale": 17)",
       "fp16.min_loss_scale: 17 is above the initial scale of 16 (2^initial_scale_power)"},
  };
  for (const auto& [text, expected] : kCases) {
    const std::string keys = text;
    EXPECT_THAT(Refused(WithBatch(R"("fp16": {"enabled": true, )" + keys + "}")),
                HasSubstr(expected));
  }
}

TEST(ConfigStrictTest, WhatIsNotImplementedMayBeWrittenWhileItIsOff) {
  Good(WithBatch(
      R"("fp16": {"enabled": false, "loss_scale": 0, "initial_scale_power": 16, "fused_mode": true},
         "amp": {"enabled": false, "opt_level": "O1"}, "communication_data_type": null,
         "gradient_predivide_factor": 1, "prescale_gradients": false,
         "elasticity": {"enabled": false, "micro_batch_sizes": [2, 4]},
         "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": false}}},
         "tensorboard": {"enabled": false, "job_name": "x"}, "pipeline": {"stages": "auto"},
         "zero_optimization": {"stage": 3, "zenflow": null, "mics_shard_size": -1,
             "zero_hpz_partition_size": 1, "offload_optimizer": {"ratio": 1.0}},
         "penstock": {"schedule": "vertical", "activation_home": "device"})"));
}

TEST(ConfigStrictTest, HomesMustGoTogether) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"("stage": 2, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"})",
       "offload_param.device: needs zero_optimization.stage 3, not 2"},
      {R"("stage": 3, "offload_param": {"device": "cpu"})", "set offload_optimizer.device to"},
      {R"("offload_optimizer": {"device": "cpu"})", "needs zero_optimization.stage 1 or higher"},
      {R"("stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/a"})",
       "offload_optimizer.device: \"nvme\" needs zero_optimization.stage 3, not 2"},
      {R"("stage": 3, "offload_optimizer": {"device": "nvme"})",
       "offload_optimizer.nvme_path: missing; device nvme needs a folder"},
      {R"("stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "auto"})", "missing"},
      {R"("stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": ""})", "not a path"},
      {R"("stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": 7})", "not a path"},
      {R"("stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": []})",
       "a list of 0 paths; give 1 to 64"},
      {R"("stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": ["/a", 7]})",
       "7 is not a path"},
      {R"("stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": ["/a", "/b", "/c/../a/"]})",
       "\"/c/../a/\" is given twice; name each folder once"},
      {R"("stage": 3, "offload_param": {"device": "nvme", "nvme_path": ["/a", "/b"]},
          "offload_optimizer": {"device": "nvme", "nvme_path": ["/b", "/a"]})",
       "[\"/a\",\"/b\"] differs from offload_optimizer.nvme_path [\"/b\",\"/a\"]"},
      {R"("stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/a"},
          "offload_optimizer": {"device": "nvme", "nvme_path": "/b"})",
       "\"/a\" differs from offload_optimizer.nvme_path \"/b\""},
  };
  for (const auto& [text, expected] : kCases) {
    const std::string section = fmt::format("\"zero_optimization\": {{{}}}", text);
    EXPECT_THAT(Refused(WithBatch(section)), HasSubstr(expected));
  }
}

TEST(ConfigStrictTest, TheThreeNamesOfTheThreadCountMustAgree) {
  const auto threads = [](const std::string& aio) {
    return Good(WithBatch("\"aio\": {" + aio + "}")).aio.thread_count;
  };
  EXPECT_EQ(threads(R"("thread_count": 2)"), 2);
  EXPECT_EQ(threads(R"("intra_op_parallelism": 3)"), 3);
  EXPECT_EQ(threads(R"("num_threads": 4)"), 4);
  EXPECT_EQ(threads(R"("thread_count": 2, "num_threads": 2)"), 2);
  EXPECT_THAT(Refused(WithBatch(R"("aio": {"thread_count": 2, "num_threads": 3})")),
              HasSubstr("aio.num_threads: 3 contradicts thread_count 2"));
}

TEST(ConfigStrictTest, AnUnknownKeyIsReportedBeforeWhatFollowsFromIt) {
  EXPECT_THAT(Refused(WithBatch(R"("zero_optimization": {"stag": 3,
                                   "offload_optimizer": {"device": "cpu"}})")),
              HasSubstr("unknown key \"zero_optimization.stag\""));
}

TEST(StrictTest, AutomaticSnapshotsNeedCommitsThatLaterStepsLeaveAlone) {
  const Config plain = Good(WithBatch(""));
  EXPECT_EQ(plain.snapshot_every_steps, 0);
  EXPECT_EQ(plain.keep_snapshots, 2);
  const Config config =
      Good(WithBatch(R"("penstock": {"snapshot_every_steps": 50, "keep_snapshots": 3})"));
  EXPECT_EQ(config.snapshot_every_steps, 50);
  EXPECT_EQ(config.keep_snapshots, 3);
  EXPECT_EQ(Good(ConfigToJson(config)).snapshot_every_steps, 50);
  EXPECT_EQ(Good(ConfigToJson(config)).keep_snapshots, 3);
  EXPECT_THAT(Refused(WithBatch(R"("penstock": {"keep_snapshots": 0})")),
              HasSubstr("penstock.keep_snapshots"));
  EXPECT_THAT(Refused(WithBatch(R"("penstock": {"snapshot_every_steps": 1, "durable": false})")),
              HasSubstr("needs penstock.durable"));
  Good(WithBatch(R"("penstock": {"snapshot_every_steps": 0, "durable": false})"));
}

}  // namespace
}  // namespace penstock::config
