#include "base/strict_json.h"
#include "tests/search_share.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <optional>
#include <string>
#include <utility>

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using FaultKind = JsonFault::Kind;

std::string Lists(int depth) {
  return std::string(static_cast<size_t>(depth), '[') +
         std::string(static_cast<size_t>(depth), ']');
}

/// `count` empty objects, separated by commas.
std::string EmptyObjects(int count) {
  std::string text = "{}";
  for (int i = 1; i < count; ++i) text += ",{}";
  return text;
}

struct Parsed {
  explicit Parsed(const std::string& text, bool comments = false)
      : fault(ParseStrictly(text, {.comments = comments, .lines = &lines}, &value)) {}

  nlohmann::json value;
  JsonLines lines;
  std::optional<JsonFault> fault;
};

TEST(StrictJsonTest, KeysKnowTheirLinesIfThatIsAsked) {
  const std::string text = "{\"a\":\n {\"b\": 1},\n\"c\": [\n{\"d\": 2}]}";
  const Parsed parsed(text);
  EXPECT_FALSE(parsed.fault);
  EXPECT_THAT(parsed.lines,
              ElementsAre(Pair("a", 1), Pair("a.b", 2), Pair("c", 3), Pair("c.[].d", 4)));
  nlohmann::json value;
  EXPECT_FALSE(ParseStrictly(text, {}, &value));
  EXPECT_EQ(value, parsed.value);
}

TEST(StrictJsonTest, TheFirstKeyThatIsThereTwiceIsNamedWithBothLines) {
  const Parsed parsed("{\"a\": [{\"x\": 1,\n\"y\": 2,\n\"x\": 3}], \"a\": 4}");
  ASSERT_TRUE(parsed.fault);
  EXPECT_EQ(parsed.fault->kind, FaultKind::kDuplicateKey);
  EXPECT_EQ(parsed.fault->key, "x");
  EXPECT_EQ(parsed.fault->path, "a.[].x");
  EXPECT_EQ(parsed.fault->line, 3u);
  EXPECT_EQ(parsed.fault->first_line, 1u);
}

TEST(StrictJsonTest, EqualKeysOfTwoObjectsAreNone) {
  EXPECT_FALSE(Parsed(R"({"a": {"x": 1}, "b": {"x": 1}, "x": [{"x": 1}, {"x": 1}]})").fault);
}

TEST(StrictJsonTest, NestingIsBounded) {
  EXPECT_FALSE(Parsed(Lists(kDeepestJson)).fault);
  for (const int depth : {kDeepestJson + 1, 200'000}) {
    const Parsed parsed(Lists(depth));
    ASSERT_TRUE(parsed.fault);
    EXPECT_EQ(parsed.fault->kind, FaultKind::kTooDeep);
    EXPECT_EQ(parsed.fault->byte, static_cast<size_t>(kDeepestJson + 1));
  }
}

TEST(StrictJsonTest, ASyntaxErrorIsReportedBeforeAnyOtherFault) {
  const Parsed parsed("{\"a\": 1,\n\"a\": 2,");
  ASSERT_TRUE(parsed.fault);
  EXPECT_EQ(parsed.fault->kind, FaultKind::kSyntax);
  EXPECT_EQ(parsed.fault->line, 2u);
}

TEST(StrictJsonTest, ANumberBeyondAllBoundsIsAnErrorAndNoException) {
  const Parsed parsed("{\n\"a\": 1e400}");
  ASSERT_TRUE(parsed.fault);
  EXPECT_EQ(parsed.fault->kind, FaultKind::kUnreadable);
  EXPECT_EQ(parsed.fault->line, 2u);
}

TEST(StrictJsonTest, OfSeveralFaultsTheOneThatEndsTheReadingIsToldOrElseTheFirst) {
  const std::string twice = "{\"a\":1,\"a\":2}";
  const std::string deep = Lists(kDeepestJson + 1);
  const auto list = [](const std::string& first, const std::string& second) {
    return fmt::format("[{},{}]", first, second);
  };
  for (const auto& [text, kind] : {std::pair(list(twice, deep), FaultKind::kDuplicateKey),
                                   std::pair(list(deep, twice), FaultKind::kTooDeep),
                                   std::pair(list(deep, "1e400,x"), FaultKind::kUnreadable),
                                   std::pair(list(twice, "1e400"), FaultKind::kUnreadable),
                                   std::pair(list(deep, "x,1e400"), FaultKind::kSyntax),
                                   std::pair(list("1", "2") + "]", FaultKind::kSyntax)}) {
    nlohmann::json value = "before";
    const std::optional<JsonFault> fault = ParseStrictly(text, {}, &value);
    ASSERT_TRUE(fault) << text;
    EXPECT_EQ(fault->kind, kind) << text;
    EXPECT_EQ(value, "before");
  }
}

TEST(StrictJsonTest, CommentsAreAcceptedOnlyIfAllowed) {
  const std::string text = "{\"a\": 1 /* one */}  // all";
  EXPECT_FALSE(Parsed(text, /*comments=*/true).fault);
  EXPECT_TRUE(Parsed(text).fault);
}

// The time limit of the test is what the next three assert beside their values: time that grew with
// the square of a text would exceed it.
TEST(StrictJsonTest, ManySiblingsAreReadInLinearTime) {
  std::string object = "{\"first\":{}";
  for (int i = 1; i < 200'000; ++i) object += fmt::format(",\"{}\":{{}}", i);
  for (const std::string& text : {"[" + EmptyObjects(200'000) + "]", object + "}"}) {
    nlohmann::json value;
    EXPECT_FALSE(ParseStrictly(text, {}, &value));
    EXPECT_EQ(value.size(), 200'000u);
  }
}

TEST(StrictJsonTest, ALongKeyIsNotCopiedForEachValueBelowIt) {
  const std::string key(1 << 20, 'k');
  nlohmann::json value;
  EXPECT_FALSE(ParseStrictly("{\"" + key + "\":[" + EmptyObjects(200'000) + "]}", {}, &value));
  EXPECT_EQ(value.at(key).size(), 200'000u);
}

TEST(StrictJsonTest, PathsBelowALongKeyAreNotKept) {
  const std::string key(1 << 20, 'k');
  std::string text = "{\"short\": 1, \"" + key + "\": {";
  for (int i = 0; i < 100'000; ++i) text += "\"" + std::to_string(i) + "\":0,";
  text += "\"last\": 0}}";
  nlohmann::json value;
  JsonLines lines;
  EXPECT_FALSE(ParseStrictly(text, {.lines = &lines}, &value));
  EXPECT_EQ(lines, (JsonLines{{"short", 1}}));
  EXPECT_EQ(value.at(key).size(), 100'001u);
}

TEST(StrictJsonTest, LongKeysMayBeNested) {
  constexpr int kLevels = 60;
  const std::string key(SearchShare(1 << 20), 'k');
  std::string text;
  for (int level = 0; level < kLevels; ++level) text += "{\"" + key + "\":";
  text += "1" + std::string(kLevels, '}');
  nlohmann::json value;
  EXPECT_FALSE(ParseStrictly(text, {}, &value));
  const nlohmann::json* at = &value;
  for (int level = 0; level < kLevels; ++level) at = &at->at(key);
  EXPECT_EQ(*at, 1);
}

TEST(ParseJsonObjectTest, SaysWhatIsWrongAndOfWhat) {
  const auto refused = [](const std::string& text) {
    const Result<nlohmann::json> object = ParseJsonObject(text, "it", ErrorCode::kCorruption);
    EXPECT_FALSE(object.ok());
    EXPECT_EQ(object.error().code, ErrorCode::kCorruption);
    const Status checked = CheckJsonObject(text, "it", ErrorCode::kCorruption);
    EXPECT_EQ(checked.ok() ? "" : checked.error().message, object.error().message);
    return object.error().message;
  };
  EXPECT_EQ(refused("{\"a\" 1}"), "it is not JSON: syntax error at byte 6 of 7");
  EXPECT_EQ(refused("{\"a\":"), "it is not JSON: it ends too soon, after 5 bytes");
  EXPECT_EQ(refused(""), "it is not JSON: it ends too soon, after 0 bytes");
  EXPECT_EQ(refused("{\"a\": 1, \"a\": 2}"), "it has the key \"a\" twice in one object");
  EXPECT_EQ(refused(Lists(65)), "it has values nested deeper than 64 levels");
  EXPECT_EQ(refused("[]"), "it is not a JSON object");
  EXPECT_EQ(refused("{\"a\": [{}, {\"b\": \"c\", \"b\": 0}]}"),
            "it has the key \"b\" twice in one object");
  EXPECT_EQ(refused("\"{}\""), "it is not a JSON object");
  EXPECT_EQ(ParseJsonObject("{\"a\": 1}", "it", ErrorCode::kCorruption)->at("a"), 1);
  for (const char* text : {"{}", "{\"a\": [{}, [1, \"b\"], {\"c\": {\"d\": null}}], \"e\": 1.5}"}) {
    EXPECT_TRUE(CheckJsonObject(text, "it", ErrorCode::kCorruption).ok()) << text;
  }
}

}  // namespace
}  // namespace penstock
