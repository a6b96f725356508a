#include "base/token.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace penstock {
namespace {

TEST(TokenTest, IsThirtyTwoDigitsAndNeverTheSame) {
  std::set<std::string> tokens;
  for (int i = 0; i < 100; ++i) tokens.insert(MakeToken().value());
  EXPECT_EQ(tokens.size(), 100U);
  for (const std::string& token : tokens) {
    EXPECT_EQ(token.size(), 32U);
    EXPECT_EQ(token.find_first_not_of("0123456789abcdef"), std::string::npos) << token;
  }
}

}  // namespace
}  // namespace penstock
