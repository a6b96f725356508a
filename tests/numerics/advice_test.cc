#include "numerics/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::train {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(OtherRemedyTest, AfterUpdatesALowerRateMayHelp) {
  EXPECT_EQ(OtherRemedy({}), "");
  EXPECT_EQ(OtherRemedy({.dtype = DType::kFloat16, .static_scale = 1}), "");
  EXPECT_EQ(OtherRemedy({.dtype = DType::kFloat16, .min_scale = 1}), "");
  EXPECT_EQ(OtherRemedy({.dtype = DType::kFloat16, .forward_finite = false, .static_scale = 4096}),
            "")
      << "no loss scale mends a forward, or breaks it";
}

TEST(OtherRemedyTest, ALossScaleThatIsAtFaultIsNamedWithItsKey) {
  EXPECT_THAT(OtherRemedy({.dtype = DType::kFloat16, .static_scale = 4096}),
              HasSubstr("fp16.loss_scale 4096 is too large"));
  EXPECT_THAT(OtherRemedy({.dtype = DType::kFloat16, .updated = false, .min_scale = 4096}),
              HasSubstr("fp16.min_loss_scale 4096 is too large"));
}

TEST(OtherRemedyTest, WeightsThatWereGivenAreNotMendedByARate) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const std::string remedy =
        OtherRemedy({.dtype = dtype, .forward_finite = false, .updated = false});
    EXPECT_THAT(remedy, HasSubstr("no update was applied to these weights"));
    EXPECT_EQ(remedy.find("bf16") != std::string::npos, dtype == DType::kFloat16) << remedy;
  }
}

TEST(OtherRemedyTest, AGradientThatUnderflowsNeedsALargerScale) {
  const std::string fixed =
      OtherRemedy({.dtype = DType::kFloat16, .zero_gradient = true, .static_scale = 2});
  EXPECT_THAT(fixed, HasSubstr("raise fp16.loss_scale"));
  EXPECT_THAT(fixed, Not(HasSubstr("too large")));
  EXPECT_THAT(OtherRemedy({.dtype = DType::kFloat16, .zero_gradient = true}),
              HasSubstr("raise fp16.initial_scale_power"));
}

}  // namespace
}  // namespace penstock::train
