// Keys in the wrong place: the hint names the right one, and following it leads on.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/config/config_test_util.h"
#include "tests/config/known_keys.h"
#include "tests/search_share.h"

namespace penstock::config {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string KeyOf(const std::string& path) { return path.substr(path.rfind('.') + 1); }
std::string ParentOf(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

/// The object at a path of the text's, made where it is missing.
json& Section(json& root, const std::string& path) {
  json* at = &root;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    at = &(*at)[path.substr(begin, end - begin)];
    begin = end + 1;
  }
  return *at;
}

struct Known {
  std::set<std::string> keys;                ///< that a hint may name
  std::set<std::string> all;                 ///< with those that are always refused
  std::map<std::string, std::string> meant;  ///< refused -> what is meant
};

Known KnownOf(const std::string& text) {
  Known known;
  ReadUnchecked(text, [&](const JsonReader& reader) {
    known.all = reader.known();
    known.meant = reader.refused();
  });
  known.keys = known.all;
  for (const auto& [path, meant] : known.meant) known.keys.erase(path);
  return known;
}

TEST(ConfigHintsTest, AKnownKeyInAnyWrongSectionIsToldItsFullPath) {
  size_t asked = 0;
  for (const char* text : kAllTypes) {
    const Known known = KnownOf(text);
    std::set<std::string> parents;
    for (const std::string& path : known.all) parents.insert(ParentOf(path));
    for (const std::string& parent : parents) {
      json root = json::parse(text);
      json& section = Section(root, parent);
      std::set<std::string> wrong;
      for (const std::string& path : known.all) {
        const std::string there = JoinJsonPath(parent, KeyOf(path));
        if (known.all.contains(there)) continue;
        section[KeyOf(path)] = 1;
        wrong.insert(path);
      }
      std::map<std::string, std::string> said;
      ReadUnchecked(root.dump(), [&](const JsonReader& reader) {
        for (const std::string& message : reader.UnknownKeys()) {
          const size_t begin = message.find('"') + 1;
          said[message.substr(begin, message.find('"', begin) - begin)] = message;
        }
      });
      for (const std::string& path : wrong) {
        const auto meant = known.meant.find(path);
        const std::string& right = meant == known.meant.end() ? path : meant->second;
        if (right.empty()) continue;
        const std::string& message = said[JoinJsonPath(parent, KeyOf(path))];
        ASSERT_THAT(message, HasSubstr("\"" + right + "\"")) << path << " in " << parent;
        ASSERT_EQ(message.find("docs/config.md"), std::string::npos) << message;
        ++asked;
      }
    }
  }
  EXPECT_GT(asked, 20000u);
}

bool At(const json& root, const std::string& path) {
  std::string pointer = "/" + path;
  std::ranges::replace(pointer, '.', '/');
  return root.contains(json::json_pointer(pointer));
}

TEST(ConfigHintsTest, NoHintLeadsToThePlaceOfTheNextError) {
  uint64_t tried = 0;
  for (const char* text : kAllTypes) {
    for (const std::string& path : KnownOf(text).keys) {
      if (tried++ % kSearchStride != 0 || At(json::parse(text), path)) continue;
      std::string errors;
      bool good = false;
      for (const json& value : {json("auto"), json::object(), json(nullptr)}) {
        json root = json::parse(text);
        if (!root.contains("train_batch_size")) root["train_batch_size"] = 1;
        Section(root, ParentOf(path))[KeyOf(path)] = value;
        const Result<Config> config = Parse(root.dump());
        good = good || config.ok();
        if (!config.ok()) errors += config.error().message + "\n";
      }
      EXPECT_TRUE(good) << text << " with " << path << ":\n" << errors;
    }
  }
}

TEST(ConfigHintsTest, KeysOfSeveralSectionsNameAll) {
  EXPECT_EQ(Refused(WithBatch(R"("zero_optimization": {"nvme_path": "/a"})")),
            "ds.json:2: unknown key \"zero_optimization.nvme_path\"; did you mean "
            "\"zero_optimization.offload_optimizer.nvme_path\" or "
            "\"zero_optimization.offload_param.nvme_path\"?");
  EXPECT_THAT(Refused(WithBatch(R"("zero_optimization": {"stages": 3})")),
              HasSubstr("did you mean \"zero_optimization.stage\" or \"pipeline.stages\"?"));
  EXPECT_THAT(Refused(WithBatch(R"("max_grad_norm": 1)")),
              HasSubstr("did you mean \"gradient_clipping\"?"));
}

TEST(ConfigHintsTest, BritishSpellingsAreRecognised) {
  EXPECT_THAT(Refused(WithBatch(R"("zero_optimisation": {"stage": 3})")),
              HasSubstr("did you mean \"zero_optimization\"?"));
  EXPECT_THAT(Refused(WithBatch(R"("optimiser": {"type": "AdamW"})")),
              HasSubstr("did you mean \"optimizer\"?"));
}

TEST(ConfigHintsTest, AnAioSectionWithinZeroIsTheOneAtTheTopLevel) {
  const Config config =
      Good(WithBatch(R"("zero_optimization": {"aio": {"block_size": 262144, "queue_depth": 32}})"));
  EXPECT_EQ(config.aio.block_size, 256_KiB);
  EXPECT_EQ(config.aio.queue_depth, 32);
  EXPECT_THAT(NoticesOf(config), Contains("config: zero_optimization.aio is read as aio, at the "
                                          "top level, where DeepSpeed has it"));
  EXPECT_THAT(Good(WithBatch("")).notices, IsEmpty());
  // Both, and they agree as far as they say the same.
  const Config both = Good(WithBatch(R"("zero_optimization": {"aio": {"queue_depth": 32}},
                                        "aio": {"queue_depth": 32, "block_size": 8192})"));
  EXPECT_EQ(both.aio.queue_depth, 32);
  EXPECT_EQ(both.aio.block_size, 8_KiB);
  EXPECT_THAT(both.notices, ElementsAre(HasSubstr("is read as aio")));
}

TEST(ConfigHintsTest, AnAioSectionWithinZeroThatDiffersIsRefused) {
  EXPECT_EQ(Refused(WithBatch("\"aio\": {\"queue_depth\": 8},\n\"zero_optimization\":\n"
                              "{\"aio\": {\"queue_depth\": 32}}")),
            "ds.json:4: zero_optimization.aio.queue_depth: 32 differs from aio.queue_depth 8; "
            "remove zero_optimization.aio: DeepSpeed reads aio at the top level only");
  // What is wrong within it is found where it stands.
  EXPECT_EQ(Refused(WithBatch("\"zero_optimization\": {\"aio\":\n{\"queue_depht\": 32}}")),
            "ds.json:3: unknown key \"aio.queue_depht\"; did you mean \"aio.queue_depth\"?");
  EXPECT_THAT(Refused(WithBatch(R"("zero_optimization": {"aio": 3})")),
              HasSubstr("unknown key \"zero_optimization.aio\"; did you mean \"aio\""));
}

}  // namespace
}  // namespace penstock::config
