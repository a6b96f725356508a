// The shipped configurations are good, and docs/config.md has every key that is known.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "config/sections.h"
#include "tests/config/config_test_util.h"
#include "tests/config/known_keys.h"

namespace penstock::config {
namespace {

using ::testing::ContainerEq;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::filesystem::path kSource = PENSTOCK_SOURCE_DIR;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Config Shipped(const std::string& name) { return Good(ReadFile(kSource / "configs" / name)); }

TEST(ConfigDocsTest, EveryShippedConfigurationIsGood) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kSource / "configs")) {
    if (entry.path().extension() != ".json") continue;
    SCOPED_TRACE(entry.path());
    const Config config = Good(ReadFile(entry.path()));
    EXPECT_GT(config.train_batch_size, 0u);
    ++count;
  }
  EXPECT_GE(count, 5);
}

TEST(ConfigDocsTest, ShippedConfigurationsPlaceWhatTheirNamesSay) {
  const Config quickstart = Shipped("quickstart.json");
  EXPECT_EQ(quickstart.parameter_home, Tier::kNvme);
  EXPECT_EQ(quickstart.optimizer_home, Tier::kNvme);
  EXPECT_THAT(quickstart.superseded, IsEmpty());
  EXPECT_THAT(quickstart.automatic, IsEmpty());
  EXPECT_EQ(Shipped("in_memory.json").optimizer_home, Tier::kDevice);
  EXPECT_EQ(Shipped("host_only.json").parameter_home, Tier::kHost);
  EXPECT_EQ(Shipped("host_only.json").optimizer_home, Tier::kHost);
  EXPECT_EQ(Shipped("optimizer_on_nvme.json").parameter_home, Tier::kHost);
  EXPECT_EQ(Shipped("optimizer_on_nvme.json").optimizer_home, Tier::kNvme);
}

TEST(ConfigDocsTest, ATransformersConfigurationIsUnderstood) {
  const Config config = Shipped("transformers_zero3.json");
  EXPECT_EQ(config.dtype, kernels::DType::kBFloat16);
  EXPECT_EQ(config.parameter_home, Tier::kHost);
  EXPECT_EQ(config.optimizer.lr, 5e-5);
  EXPECT_EQ(config.scheduler.type, SchedulerType::kWarmupLr);
  EXPECT_EQ(config.train_batch_size, 8u);
  EXPECT_THAT(PathsOf(config.automatic), Contains("optimizer.params.lr"));
  EXPECT_THAT(PathsOf(config.superseded), Contains("zero_optimization.stage3_max_live_parameters"));
}

std::set<std::string> KnownKeys() {
  std::set<std::string> known;
  for (const char* text : kAllTypes) {
    ReadUnchecked(text, [&known](const JsonReader& reader) {
      known.insert(reader.known().begin(), reader.known().end());
    });
  }
  return known;
}

/// What stands in backquotes in the first column of the tables.
std::set<std::string> DocumentedKeys() {
  std::set<std::string> keys;
  std::istringstream text(ReadFile(kSource / "docs" / "config.md"));
  for (std::string line; std::getline(text, line);) {
    if (!line.starts_with("| `")) continue;
    const std::string cell = line.substr(1, line.find('|', 1) - 1);
    for (size_t begin = cell.find('`'); begin != std::string::npos;) {
      const size_t end = cell.find('`', begin + 1);
      const std::string key = cell.substr(begin + 1, end - begin - 1);
      if (!key.starts_with('-')) keys.insert(key);  // flags have a table, too
      begin = cell.find('`', end + 1);
    }
  }
  return keys;
}

TEST(ConfigDocsTest, TheTablesSayWhatDoesTheWorkOfASupersededKey) {
  JsonDocument document;
  ASSERT_TRUE(document
                  .Merge("test", R"({"memory_breakdown": true, "dataloader_drop_last": true,
      "checkpoint": {"load_universal": true, "use_node_local_storage": true, "writer": {}},
      "activation_checkpointing": {"partition_activations": true, "number_checkpoints": 1},
      "bf16": {"immediate_grad_update": true}, "dump_state": true,
      "zero_optimization": {"overlap_comm": true, "reduce_scatter": true, "leaf_module":
          {"names": []}, "stage3_gather_16bit_weights_on_model_save": true,
          "offload_param": {"pin_memory": true}, "offload_optimizer": {"fast_init": true}}})")
                  .ok());
  JsonReader reader(document);
  ConfigDraft draft;
  ReadConfig(reader, draft);
  EXPECT_EQ(reader.superseded().size(), 15u);
  const std::string docs = ReadFile(kSource / "docs" / "config.md");
  for (const SupersededKey& key : reader.superseded()) {
    const size_t at = docs.find("`" + key.path + "`");
    ASSERT_NE(at, std::string::npos) << key.path;
    EXPECT_THAT(docs.substr(at, docs.find('\n', at) - at),
                HasSubstr(fmt::format("superseded: {} |", TextOf(key.instead))));
  }
}

TEST(ConfigDocsTest, TheTablesHaveTheKnownKeysAndNoOthers) {
  const std::set<std::string> known = KnownKeys();
  EXPECT_GT(known.size(), 200u);
  EXPECT_THAT(DocumentedKeys(), ContainerEq(known));
}

}  // namespace
}  // namespace penstock::config
