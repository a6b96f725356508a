// The batch triangle, and how the batch grows.
#include <gmock/gmock.h>

#include "config/config.h"
#include "tests/config/config_test_util.h"

namespace penstock::config {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Triangle {
  const char* text;
  uint64_t world, train, micro, accumulation;
};

TEST(ConfigBatchTest, BatchTriangleFollowsDeepSpeedsRules) {
  const Triangle kCases[] = {
      {R"("train_batch_size": 24, "train_micro_batch_size_per_gpu": 3,
          "gradient_accumulation_steps": 4)",
       2, 24, 3, 4},
      {R"("train_batch_size": 24, "train_micro_batch_size_per_gpu": 3)", 2, 24, 3, 4},
      {R"("train_batch_size": 24, "gradient_accumulation_steps": 4)", 2, 24, 3, 4},
      {R"("train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 4)", 2, 24, 3, 4},
      {R"("train_batch_size": 24)", 2, 24, 12, 1},
      {R"("train_micro_batch_size_per_gpu": 3)", 2, 6, 3, 1},
      {R"("train_batch_size": 24, "train_micro_batch_size_per_gpu": null)", 1, 24, 24, 1},
      {R"("train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
          "gradient_accumulation_steps": "auto")",
       2, 16, 8, 1},
      {R"("train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 4)", 2, 64, 8,
       4},
      {R"("train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4,
          "gradient_accumulation_steps": 8)",
       4, 128, 4, 8},
      {R"("gradient_accumulation_steps": "auto")", 2, 16, 8, 1},
      {R"("train_batch_size": 24, "train_micro_batch_size_per_gpu": "auto",
          "gradient_accumulation_steps": "auto")",
       2, 24, 12, 1},
      {R"("train_batch_size": 2.4e1)", 1, 24, 24, 1},
  };
  for (const Triangle& triangle : kCases) {
    SCOPED_TRACE(triangle.text);
    const Config config = Good(fmt::format("{{{}}}", triangle.text), triangle.world);
    EXPECT_EQ(config.train_batch_size, triangle.train);
    EXPECT_EQ(config.micro_batch_size, triangle.micro);
    EXPECT_EQ(config.gradient_accumulation_steps, triangle.accumulation);
  }
}

TEST(ConfigBatchTest, ABatchThatDoesNotFitTheWorldSizeSpellsOutTheProduct) {
  EXPECT_EQ(Refused(R"({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 2,
                        "gradient_accumulation_steps": 2})",
                    2),
            "ds.json:1: train_batch_size: 10 is not train_micro_batch_size_per_gpu 2 * "
            "gradient_accumulation_steps 2 * world size 2 = 8; change one of them, or remove one "
            "and it is derived");
  EXPECT_THAT(Refused(R"({"train_batch_size": 7})", 2), HasSubstr("= 6;"));
  EXPECT_THAT(Refused(R"({"train_batch_size": 1, "train_micro_batch_size_per_gpu": 2})"),
              HasSubstr("gradient_accumulation_steps 0"));
  EXPECT_THAT(Refused(R"({"gradient_accumulation_steps": 4})"),
              HasSubstr("train_micro_batch_size_per_gpu: missing; give it or train_batch_size"));
  EXPECT_THAT(Refused("{}"), HasSubstr("missing"));
  EXPECT_THAT(Refused(R"({"train_batch_size": 0})"), HasSubstr("0 is not an integer in [1, "));
  EXPECT_THAT(Refused(R"({"train_micro_batch_size_per_gpu": 2147483647,
                          "gradient_accumulation_steps": 2147483647})",
                      1000),
              HasSubstr("beyond 2^63"));
}

std::string Ramp(const std::string& value, const std::string& batch = R"("train_batch_size": 24)") {
  return fmt::format(R"({{{}, "train_micro_batch_size_per_gpu": 2,
                         "penstock": {{"rampup_batch_size": {}}}}})",
                     batch, value);
}

TEST(ConfigBatchTest, ReadsHowTheBatchGrows) {
  const Config config = Good(Ramp("[4, 2e1, 100]"), 2);
  EXPECT_EQ(config.train_batch_size, 24u);
  EXPECT_EQ(config.gradient_accumulation_steps, 6u) << "of the last batch";
  ASSERT_TRUE(config.rampup.has_value());
  EXPECT_EQ(config.rampup->start, 4u);
  EXPECT_EQ(config.rampup->increment, 20u);
  EXPECT_EQ(config.rampup->samples, 100u);
  EXPECT_FALSE(Good(Ramp("null")).rampup.has_value());
  EXPECT_TRUE(Good(Ramp("[24, 1, 0]")).rampup.has_value());
  EXPECT_TRUE(Good(Ramp("[4, 20, 1]", R"("gradient_accumulation_steps": 12)")).rampup.has_value());
}

TEST(ConfigBatchTest, ABatchThatCannotGrowSoIsRefusedWithTheFirstThatIsNotPossible) {
  const auto refused = [](const std::string& value, const std::string& why, uint64_t world = 1) {
    EXPECT_THAT(Refused(Ramp(value), world),
                AllOf(HasSubstr("penstock.rampup_batch_size: "), HasSubstr(why)));
  };
  for (const char* value : {"7", "\"auto\"", "[]", "[4, 4]", "[4, 4, 4, 4]", "[4, 4, \"4\"]",
                            "[4, 4, 0.5]", "[0, 4, 4]", "[4, 0, 4]", "[4, -4, 4]", "[4, 4, -1]",
                            "[4, 4, 1e30]", "[2147483648, 4, 4]"}) {
    refused(value, "expected null or [start, increment, samples]");
  }
  refused("[26, 2, 10]", "starts with 26 rows, and train_batch_size is 24");
  refused("[4, 3, 10]",
          "from 4 rows to train_batch_size 24 are 20 rows, which are no multiple of "
          "the increment 3");
  refused("[3, 3, 10]",
          "batch of 3 rows is no multiple of train_micro_batch_size_per_gpu 2 * world "
          "size 1 = 2");
  refused("[4, 5, 10]", "batch of 9 rows is no multiple of");
  refused("[4, 4, 10]",
          "batch of 4 rows is no multiple of train_micro_batch_size_per_gpu 2 * world "
          "size 4 = 8",
          4);
  EXPECT_EQ(Refused(R"({"train_batch_size": 2048, "train_micro_batch_size_per_gpu": 4,
                        "penstock": {"rampup_batch_size": [16, 16, 9765625]}})",
                    8),
            "ds.json:2: penstock.rampup_batch_size: its batch of 16 rows is no multiple of "
            "train_micro_batch_size_per_gpu 4 * world size 8 = 32; change start or increment, or "
            "take fewer ranks or a smaller micro-batch");
  // What is wrong with the batch itself comes first.
  EXPECT_THAT(Refused(Ramp("[26, 2, 10]", R"("train_batch_size": 7)")),
              HasSubstr("train_batch_size: 7 is not"));
}

}  // namespace
}  // namespace penstock::config
