#include "train/doctor/check.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>

namespace penstock::train {
namespace {

TEST(CheckTest, EachHasOneLineAndTheLastLineCountsThem) {
  const std::string text =
      ToText({OkCheck("a", "good"), WarnCheck("b", "slow", "buy another"),
              FailCheck("c", "gone", "make one"), UnknownCheck("d", "unknown: /x cannot be read")});
  EXPECT_EQ(text,
            "ok       a                   good\n"
            "warn     b                   slow; buy another\n"
            "fail     c                   gone; make one\n"
            "unknown  d                   unknown: /x cannot be read\n"
            "4 checks: 1 ok, 1 warn, 1 fail, 1 unknown\n");
}

TEST(CheckTest, NoNameOfAFileBreaksALine) {
  const std::string text = ToText({OkCheck("folder", "a\nb\x1b[2J c")});
  EXPECT_EQ(std::ranges::count(text, '\n'), 2);
  EXPECT_THAT(text, testing::HasSubstr("a b\\u001b[2J c"));
}

TEST(CheckTest, WhatAFileSaysIsCut) {
  EXPECT_LT(ToText({OkCheck("run end", std::string(1 << 20, 'x'))}).size(), 3000U);
}

TEST(CheckTest, OnlyAFailedCheckFails) {
  EXPECT_FALSE(HasFailed({OkCheck("a", ""), WarnCheck("b", "", ""), UnknownCheck("c", "")}));
  EXPECT_TRUE(HasFailed({OkCheck("a", ""), FailCheck("b", "", "")}));
}

}  // namespace
}  // namespace penstock::train
