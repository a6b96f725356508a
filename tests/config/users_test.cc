// Configurations as guides to DeepSpeed print them and as people paste them, in our own writing,
// each with what becomes of it.
#include <gmock/gmock.h>

#include <set>
#include <string>

#include "config/config.h"
#include "tests/config/config_test_util.h"

namespace penstock::config {
namespace {

using ::testing::HasSubstr;

struct Block {
  const char* name;  ///< where a block like it stands: guide and line
  const char* text;
  const char* refused;  ///< part of the message; null: it is read
};

constexpr Block kBlocks[] = {
    {"s1:0067", R"({"zero_optimization": {"stage": 1}})", nullptr},
    {"s1:0076", R"({"fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000,
        "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1}, "optimizer":
        {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
        "weight_decay": "auto"}}, "scheduler": {"type": "WarmupLR", "params":
        {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme",
        "nvme_path": "/local_nvme", "pin_memory": true, "buffer_count": 4, "fast_init":
        false}, "offload_param": {"device": "nvme", "nvme_path": "/local_nvme",
        "pin_memory": true, "buffer_count": 5, "buffer_size": 1e8, "max_in_cpu": 1e9},
        "aio": {"block_size": 262144, "queue_depth": 32, "thread_count": 1,
        "single_submit": false, "overlap_events": true}, "overlap_comm": true,
        "contiguous_gradients": true, "sub_group_size": 1e9, "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold":
        "auto", "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": true}, "gradient_accumulation_steps":
        "auto", "gradient_clipping": "auto", "steps_per_print": 2000, "train_batch_size":
        "auto", "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": false})",
     nullptr},
    {"s1:0150", R"({"train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto"})",
     nullptr},
    {"s1:0158", R"({"communication_data_type": "fp32"})", nullptr},
    {"s1:0163", R"({"gradient_accumulation_steps": "auto"})", nullptr},
    {"s1:0168", R"({"gradient_clipping": "auto"})", nullptr},
    {"s1:0173", R"({"fp16": {"enabled": false}})", nullptr},
    {"s1:0183", R"({"optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto",
        "eps": "auto", "weight_decay": "auto"}}})",
     nullptr},
    {"s1:0194", R"({"zero_allow_untested_optimizer": true})", nullptr},
    {"s1:0197", R"({"zero_force_ds_cpu_optimizer": false})", nullptr},
    {"s1:0202", R"({"checkpoint": {"load_universal": true}})", nullptr},
    {"s1:0218", R"({"checkpoint": {"use_node_local_storage": true}})", nullptr},
    {"s1:0257", R"({"fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000,
        "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1}, "optimizer":
        {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
        "weight_decay": "auto"}}, "scheduler": {"type": "WarmupLR", "params":
        {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu",
        "pin_memory": true}, "offload_param": {"device": "cpu", "pin_memory": true},
        "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e9,
        "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9, "stage3_gather_16bit_weights_on_model_save":
        true}, "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
        "steps_per_print": 2000, "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": false})",
     nullptr},
    {"s1:0319", R"({"zero_optimization": {"stage": 3,
        "stage3_gather_16bit_weights_on_model_save": true}})",
     nullptr},
    {"s1:0369", R"({"fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000,
        "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1}})",
     nullptr},
    {"s2:0043", R"({"zero_optimization": {"stage": 3}})", nullptr},
    {"s2:0052", R"({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 16})",
     nullptr},
    {"s2:0065", R"({"activation_checkpointing": {"partition_activations": true,
        "cpu_checkpointing": true, "contiguous_memory_optimization": true,
        "number_checkpoints": 4}})",
     nullptr},
    {"s2:0077", R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu",
        "pin_memory": true}, "offload_param": {"device": "cpu", "pin_memory": true}}})",
     nullptr},
    {"s2:0119", R"({"zero_optimization": {"stage": 3, "stage3_max_live_parameters": 1e8,
        "stage3_max_reuse_distance": 1e8, "stage3_prefetch_bucket_size": 5e7}})",
     nullptr},
    {"s2:0131", R"({"activation_checkpointing": {"partition_activations": true,
        "cpu_checkpointing": true, "contiguous_memory_optimization": true,
        "number_checkpoints": null, "synchronize_checkpoint_boundary": false, "profile":
        false}})",
     nullptr},
    {"s2:0169", R"({"zero_optimization": {"stage": 2, "contiguous_gradients": true,
        "overlap_comm": true}})",
     nullptr},
    {"s2:0364", R"({"zero_optimization": {"stage": 3, "reduce_bucket_size": 5e7,
        "allgather_bucket_size": 5e7}})",
     nullptr},
    {"s2:0441", R"({"fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16,
        "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1}})",
     nullptr},
    {"s2:0455", R"({"bf16": {"enabled": true}, "fp16": {"enabled": false}})", nullptr},
    {"s2:0467", R"({"gradient_clipping": 1.0})", nullptr},
    {"s2:0616", R"({"checkpoint": {"tag_validation": "Strict", "load_universal": false,
        "use_node_local_storage": false}})",
     nullptr},
    {"s2:0732", R"({"steps_per_print": 100, "wall_clock_breakdown": false, "dump_state": false})",
     nullptr},
    {"s2:0741", R"({"zero_optimization": {"stage": 3, "overlap_comm": true,
        "contiguous_gradients": true, "reduce_bucket_size": 5e8, "allgather_bucket_size":
        5e8, "reduce_scatter": true}})",
     nullptr},
    {"s2:0783", R"({"train_batch_size": 128, "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 16})",
     nullptr},
    {"s2:0792",
     R"({
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {
      "device": "cpu",
      "pin_memory": true,
      "fast_init": false
    },
    // parameters stay on the device, so {"offload_param": {}} is not here,
    // "neither this"
  }
})",
     "ds.json:8:6: not valid JSON: a comma before }; remove it"},
    {"s2:0838",
     R"(// wrong
{
  "zero_optimisation": { ... },
  "optimiser": { ... }
}
// right
{
  "zero_optimization": { ... },
  "optimizer": { ... }
})",
     "ds.json:3:26: not valid JSON: "},
    {"s2:0892",
     R"(// 4 * 8 * 4
{"train_batch_size": 128, // of all
 "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8})",
     "= 32; it fits 4 ranks: penstock launch --ranks 4, or gradient_accumulation_steps 32 here"},
    {"s2:0903", R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 8})",
     nullptr},
    {"s2:1038", R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu",
        "pin_memory": true, "fast_init": false}, "offload_param": {"device": "cpu",
        "pin_memory": true}}})",
     nullptr},
    {"s2:1056", R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu",
        "pin_memory": true}}, "optimizer": {"type": "AdamW", "params": {"lr": 0.0001}}})",
     nullptr},
    {"s2:1075", R"({"zero_optimization": {"stage": 3, "overlap_comm": true,
        "prefetch_bucket_size": 5e7, "max_reuse_distance": 1e9, "sub_group_size": 1e9}})",
     nullptr},
    {"s2:1137", R"({"aio": {"block_size": 1048576, "queue_depth": 8, "thread_count": 1,
        "single_submit": false, "overlap_events": true}})",
     nullptr},
    {"s2:1172", R"({"bf16": {"enabled": true}, "fp16": {"enabled": false}})", nullptr},
    {"s2:1184", R"({"fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 20,
        "loss_scale_window": 500, "min_loss_scale": 128}})",
     nullptr},
    {"s2:1197", R"({"gradient_clipping": 1.0})", nullptr},
};

/// The block, with a batch size where it has none.
Result<Config> Read(const Block& block, uint64_t world_size = 1) {
  std::vector<ConfigSource> sources = {{"ds.json", block.text}};
  if (std::string(block.text).find("batch_size\"") == std::string::npos &&
      std::string(block.text).find("per_gpu\"") == std::string::npos) {
    sources.push_back({"batch.json", R"({"train_micro_batch_size_per_gpu": 1})"});
  }
  return ParseConfig(sources, world_size);
}

TEST(ConfigUsersTest, BlocksOfGuidesAreReadOrSayInOneLineWhyNot) {
  for (const Block& block : kBlocks) {
    SCOPED_TRACE(block.name);
    const Result<Config> config = Read(block);
    EXPECT_EQ(config.ok(), block.refused == nullptr) << (config.ok() ? "" : config.error().message);
    if (config.ok() || block.refused == nullptr) continue;
    EXPECT_THAT(config.error().message, HasSubstr(block.refused));
    EXPECT_EQ(config.error().message.find('\n'), std::string::npos);
  }
}

TEST(ConfigUsersTest, NothingIsSaidTwiceOfABlock) {
  for (const Block& block : kBlocks) {
    if (block.refused != nullptr) continue;
    SCOPED_TRACE(block.name);
    const std::vector<std::string> lines = NoticesOf(*Read(block));
    EXPECT_EQ(std::set<std::string>(lines.begin(), lines.end()).size(), lines.size());
    // Nor is a key named by two lines.
    std::set<std::string> keys;
    const Config config = *Read(block);
    for (const SupersededKey& key : config.superseded) EXPECT_TRUE(keys.insert(key.path).second);
    for (const AutomaticKey& key : config.automatic) EXPECT_TRUE(keys.insert(key.path).second);
  }
}

TEST(ConfigUsersTest, ABatchForFourRanksIsReadByFour) {
  for (const Block& block : kBlocks) {
    if (block.name != std::string("s2:0892")) continue;
    const Result<Config> config = Read(block, 4);
    ASSERT_TRUE(config.ok());
    EXPECT_EQ(config->train_batch_size, 128u);
  }
}

}  // namespace
}  // namespace penstock::config
