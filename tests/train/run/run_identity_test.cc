#include "train/run/run_identity.h"

#include <gmock/gmock.h>

namespace penstock::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(RunIdentity, AKeyThatCameLaterIsNotThereWhereNothingChanged) {
  RunIdentity identity;
  identity.config.dtype = DType::kBFloat16;
  const std::string before = ToJson(identity);
  EXPECT_THAT(before, Not(HasSubstr("bf16_optimizer_states")));
  EXPECT_THAT(Differences(before, before), IsEmpty());
  identity.config.optimizer.moments = DType::kBFloat16;
  EXPECT_THAT(Differences(before, ToJson(identity)),
              ElementsAre("bf16.bf16_optimizer_states is true, was not there"));
}

}  // namespace
}  // namespace penstock::train
