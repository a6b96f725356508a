// Keys for what is done in another way here: checked, listed once, and told what does their work.
#include "config/superseded.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/config/config_test_util.h"
#include "tests/config/known_keys.h"

namespace penstock::config {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

/// All keys that can be listed so.
std::map<std::string, Instead> AllSuperseded() {
  std::map<std::string, Instead> all;
  for (const char* text : kAllTypes) {
    std::set<std::string> known;
    ReadUnchecked(text, [&](const JsonReader& reader) { known = reader.known(); });
    for (const std::string& path : known) {
      json root = json::parse(text);
      std::string pointer = "/" + path;
      std::ranges::replace(pointer, '.', '/');
      root[json::json_pointer(pointer)] = "auto";
      ReadUnchecked(root.dump(), [&](const JsonReader& reader) {
        for (const SupersededKey& key : reader.superseded()) all[key.path] = key.instead;
      });
    }
  }
  return all;
}

TEST(ConfigSupersededTest, EachKeyIsToldWhatDoesItsWork) {
  const std::map<std::string, Instead> all = AllSuperseded();
  EXPECT_GT(all.size(), 80u);
  std::set<std::string_view> texts;
  for (const auto& [path, instead] : all) {
    EXPECT_FALSE(TextOf(instead).empty()) << path;
    texts.insert(TextOf(instead));
    EXPECT_THAT(SupersededLines({{path, instead}}),
                ElementsAre(fmt::format("without effect: {}: {}", path, TextOf(instead))));
  }
  // No two groups say the same, and none is without a key.
  texts.insert(TextOf(Instead::kUnusedPath));
  texts.insert(TextOf(Instead::kAccumulation));
  EXPECT_EQ(texts.size(), static_cast<size_t>(kLastInstead) + 1);
}

TEST(ConfigSupersededTest, TheTextIsThatOfTheKey) {
  const std::map<std::string, Instead> all = AllSuperseded();
  const std::pair<const char*, const char*> kCases[] = {
      {"memory_breakdown",
       "metrics.jsonl has times, rates, bytes and peaks of every step; "
       "--trace"},
      {"flops_profiler.enabled", "metrics.jsonl"},
      {"dump_state", "summary.json"},
      {"checkpoint.tag_validation", "penstock inspect RUN"},
      {"zero_optimization.stage3_gather_16bit_weights_on_model_save",
       "penstock export RUN --to DIR --dtype bf16"},
      {"activation_checkpointing.number_checkpoints", "computed again in backward"},
      {"zero_allow_untested_optimizer", "every optimizer that is accepted"},
      {"zero_force_ds_cpu_optimizer", "updates are penstock's own"},
      {"zero_optimization.reduce_bucket_size", "penstock.host_memory"},
      {"zero_optimization.overlap_comm", "penstock.overlap"},
  };
  for (const auto& [path, expected] : kCases) {
    ASSERT_TRUE(all.contains(path)) << path;
    EXPECT_THAT(std::string(TextOf(all.at(path))), HasSubstr(expected)) << path;
  }
}

TEST(ConfigSupersededTest, KeysAreCheckedAndListed) {
  const Config config = Good(WithBatch(
      R"("memory_breakdown": true, "flops_profiler": {"enabled": true, "profile_step": 3},
         "bf16": {"immediate_grad_update": true},
         "zero_optimization": {"overlap_comm": null, "stage3_max_live_parameters": 1e9,
             "offload_optimizer": {"pin_memory": false, "pipeline_read": true, "ratio": 1}})"));
  EXPECT_THAT(PathsOf(config.superseded),
              UnorderedElementsAre("memory_breakdown", "flops_profiler.enabled",
                                   "flops_profiler.profile_step", "bf16.immediate_grad_update",
                                   "zero_optimization.overlap_comm",
                                   "zero_optimization.stage3_max_live_parameters",
                                   "zero_optimization.offload_optimizer.pin_memory",
                                   "zero_optimization.offload_optimizer.pipeline_read"));
  EXPECT_THAT(Refused(WithBatch(R"("zero_optimization": {"overlap_comm": 1})")),
              HasSubstr("zero_optimization.overlap_comm: expected true or false or null, got 1"));
}

TEST(ConfigSupersededTest, KeysOfOneGroupShareALine) {
  const Config config = Good(WithBatch(R"("memory_breakdown": true, "dump_state": true,
      "flops_profiler": {"enabled": true}, "optimizer": {"type": "AdamW"})"));
  EXPECT_THAT(NoticesOf(config),
              ElementsAre("config: without effect: memory_breakdown, flops_profiler.enabled: "
                          "metrics.jsonl has times, rates, bytes and peaks of every step; --trace "
                          "writes what ran when",
                          "config: without effect: dump_state: summary.json has the configuration "
                          "as it was understood"));
}

TEST(ConfigSupersededTest, HarmlessFeaturesAreAcceptedAndSaidWhereTheyAreOn) {
  const auto said = [](const std::string& members) {
    return PathsOf(Good(WithBatch(members)).superseded);
  };
  const std::pair<const char*, const char*> kCases[] = {
      {"checkpoint", "use_node_local_storage"},
      {"checkpoint", "load_universal"},
      {"activation_checkpointing", "partition_activations"},
  };
  for (const auto& [section, key] : kCases) {
    EXPECT_THAT(said(fmt::format(R"("{}": {{"{}": true}})", section, key)),
                ElementsAre(fmt::format("{}.{}", section, key)));
    EXPECT_THAT(said(fmt::format(R"("{}": {{"{}": false}})", section, key)), IsEmpty());
    EXPECT_THAT(Refused(WithBatch(fmt::format(R"("{}": {{"{}": 1}})", section, key))),
                HasSubstr("expected true or false, got 1"));
  }
  EXPECT_THAT(said(R"("dataloader_drop_last": true)"), ElementsAre("dataloader_drop_last"));
  EXPECT_THAT(said(R"("dataloader_drop_last": false)"), IsEmpty());
}

TEST(ConfigSupersededTest, AccumulationInFp32IsWhatIsDoneAnyway) {
  for (const char* precision : {"bf16", "fp16"}) {
    const auto with = [&](const char* dtype) {
      return fmt::format(R"("{}": {{"enabled": true}}, "data_types": {{"grad_accum_dtype": "{}"}})",
                         precision, dtype);
    };
    EXPECT_THAT(NoticesOf(Good(WithBatch(with("fp32")))),
                Contains("config: without effect: data_types.grad_accum_dtype: gradients are "
                         "always accumulated in fp32, and rounded once to the model's "
                         "type"));
    EXPECT_THAT(Good(WithBatch(with(precision))).superseded, IsEmpty());
    EXPECT_THAT(Refused(WithBatch(with(precision == std::string("bf16") ? "fp16" : "bf16"))),
                HasSubstr("is not implemented"));
  }
  EXPECT_THAT(Good(WithBatch(R"("data_types": {"grad_accum_dtype": "fp32"})")).superseded,
              IsEmpty());
}

TEST(ConfigSupersededTest, AGradientTypeOnTheWayIsAcceptedOnOneRank) {
  Good(WithBatch(R"("communication_data_type": "fp32")"));
}

}  // namespace
}  // namespace penstock::config
