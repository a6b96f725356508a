#include "front/model_text.h"

#include <gmock/gmock.h>

#include "tests/front/c_engine.h"

namespace penstock::front {
namespace {

using ::testing::HasSubstr;

TEST(ModelTextTest, TextBecomesUnitsAndGroups) {
  const auto model = ParseModel(ModelOf("bf16").dump());
  ASSERT_TRUE(model.ok()) << model.error().message;
  ASSERT_EQ(model->modules.size(), kUnits);
  EXPECT_FALSE(model->modules[0].repeated);
  EXPECT_TRUE(model->modules[1].repeated);
  EXPECT_EQ(model->modules[1].tensors[0].name, "u1.w");
  EXPECT_EQ(model->modules[1].tensors[0].shape, (std::vector<uint64_t>{100, 91}));
  EXPECT_EQ(model->groups[0].weight, DType::kBFloat16);
  EXPECT_EQ(model->groups[1].weight, DType::kFloat32);
  EXPECT_TRUE(model->groups[2].frozen);
}

TEST(ModelTextTest, AScalarIsATensorOfOneElement) {
  const auto model = ParseModel(
      R"({"groups": [{"name": "a"}],
          "units": [{"name": "u", "tensors": [{"name": "scale", "shape": []}]}]})");
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_TRUE(model->modules[0].tensors[0].shape.empty());
}

TEST(ModelTextTest, SizesThatOverflowAreRefused) {
  const auto model = ParseModel(
      R"({"groups": [{"name": "a"}],
          "units": [{"name": "u", "tensors": [{"name": "w", "shape": [4294967296, 4294967296]}]}]})");
  ASSERT_FALSE(model.ok());
  EXPECT_THAT(model.error().message, HasSubstr("units[0].tensors[0].shape has 4294967296"));
}

TEST(ModelTextTest, WhatIsNoObjectOrTextIsNamed) {
  EXPECT_THAT(ParseModel("[]").error().message, HasSubstr("model"));
  EXPECT_THAT(ParseModel(R"({"groups": [3], "units": []})").error().message,
              HasSubstr("groups[0] is no object"));
  EXPECT_THAT(
      ParseModel(R"({"groups": [{"name": "a", "frozen": 1}], "units": []})").error().message,
      HasSubstr("groups[0].frozen is 1"));
  EXPECT_THAT(ParseOptions(R"({"folders": [""]})").error().message, HasSubstr("folders is \"\""));
  EXPECT_THAT(ParseOptions(R"({"seed": -1})").error().message, HasSubstr("seed is -1"));
}

}  // namespace
}  // namespace penstock::front
