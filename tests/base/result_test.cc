#include "base/result.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock {
namespace {

Result<int> Half(int value) {
  if (value % 2 != 0) return MakeError(ErrorCode::kInvalidArgument, "{} is odd", value);
  return value / 2;
}

Result<int> Quarter(int value) {
  PENSTOCK_ASSIGN(const int half, Half(value));
  PENSTOCK_ASSIGN(const int quarter, Half(half));
  return quarter;
}

/// `steps` counts how far it came.
Status TryBoth(int first, int second, int& steps) {
  PENSTOCK_TRY(Half(first));
  ++steps;
  PENSTOCK_TRY(Half(second).status());
  ++steps;
  return {};
}

TEST(Result, HoldsAValueOrAnError) {
  const Result<int> good = Half(4);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(*good, 2);
  EXPECT_EQ(good.value(), 2);
  EXPECT_TRUE(good.status().ok());

  const Result<int> bad = Half(3);
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(bad.error().message, "3 is odd");
  EXPECT_EQ(bad.status().error().message, "3 is odd");
}

TEST(Result, MovesWhatCannotBeCopied) {
  std::vector<Result<std::unique_ptr<int>>> results;
  results.emplace_back(std::make_unique<int>(7));
  results.emplace_back(MakeError(ErrorCode::kIo, "gone"));
  EXPECT_EQ(**results[0], 7);
  const std::unique_ptr<int> taken = std::move(results[0]).value();
  EXPECT_EQ(*taken, 7);
  EXPECT_FALSE(results[1].ok());
}

TEST(Result, ArrowReachesTheValue) {
  Result<std::string> text(std::string("four"));
  EXPECT_EQ(text->size(), 4u);
}

TEST(PenstockAssign, BindsTheValueOrLeavesWithTheError) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(7).error().message, "7 is odd");
  EXPECT_EQ(Quarter(6).error().message, "3 is odd");
}

TEST(PenstockTry, ContinuesOrReturnsTheError) {
  int steps = 0;
  EXPECT_TRUE(TryBoth(2, 4, steps).ok());
  EXPECT_EQ(steps, 2);
  steps = 0;
  EXPECT_EQ(TryBoth(2, 5, steps).error().message, "5 is odd");
  EXPECT_EQ(steps, 1);
  steps = 0;
  EXPECT_EQ(TryBoth(1, 5, steps).error().message, "1 is odd");
  EXPECT_EQ(steps, 0);
}

TEST(ErrnoError, FindsTheCodeAndKeepsTheText) {
  const auto code = [](int error_number) { return ErrnoError(error_number, "x").code; };
  for (const int full : {ENOSPC, EDQUOT, EFBIG}) EXPECT_EQ(code(full), ErrorCode::kOutOfSpace);
  EXPECT_EQ(code(ENOENT), ErrorCode::kNotFound);
  for (const int denied : {EACCES, EPERM, EROFS}) EXPECT_EQ(code(denied), ErrorCode::kPermission);
  EXPECT_EQ(code(ENOMEM), ErrorCode::kOutOfMemory);
  EXPECT_EQ(code(EIO), ErrorCode::kIo);
  EXPECT_EQ(code(EINVAL), ErrorCode::kIo);
  EXPECT_EQ(ErrnoError(ENOENT, "opening a").message, "opening a: No such file or directory");
}

TEST(ResultDeathTest, ReadingWhatIsNotThereIsABug) {
  EXPECT_DEATH((void)Half(3).value(), "3 is odd");
  EXPECT_DEATH((void)Half(2).error(), "check failed");
  EXPECT_DEATH((void)Status().error(), "check failed");
}

TEST(CheckDeathTest, NamesPlaceConditionAndMessage) {
  const int count = 3;
  PENSTOCK_CHECK(count == 3);
  EXPECT_DEATH(PENSTOCK_CHECK(count == 4, "count is {}", count),
               "penstock: bug: .*result_test.cc:[0-9]+: check failed: count == 4: count is 3");
}

}  // namespace
}  // namespace penstock
