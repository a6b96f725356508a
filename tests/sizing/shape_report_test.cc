#include "sizing/shape_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace penstock::train {
namespace {

TEST(ShapeReportTest, NamesWhatAModelHasOfEachKind) {
  const ModelShape shape =
      ParseModelShape("llama:h=2048,l=22,v=32000,i=5632,heads=32,kv=4").value();
  EXPECT_EQ(
      ShapeText(shape),
      "llama: 1100048384 parameters (1.1B), width to depth 93, 65536000 in the largest module\n"
      "  embedding             65536000\n"
      "  attention            207618048\n"
      "  mlp                  761266176\n"
      "  norms                    92160\n"
      "  head                  65536000\n");
}

TEST(ShapeReportTest, TheJsonsKindsAddUp) {
  const ModelShape shape = ParseModelShape("gpt2:h=768,l=12,v=50257,s=1024").value();
  const nlohmann::json object = ShapeJson(shape);
  EXPECT_EQ(object["parameters"], 124439808);
  uint64_t sum = 0;
  for (const auto& count : object["parameters_by_kind"]) sum += count.get<uint64_t>();
  EXPECT_EQ(sum, 124439808);
  EXPECT_EQ(object["width_to_depth"], 64);
}

}  // namespace
}  // namespace penstock::train
