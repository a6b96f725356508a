#include "base/units.h"

#include <gmock/gmock.h>

#include <limits>
#include <string>

namespace penstock {
namespace {

TEST(Bytes, ArithmeticAndOrderAreThoseOfTheirValues) {
  EXPECT_EQ(1_KiB + 1_B, 1025_B);
  EXPECT_EQ(1_MiB - 1_KiB, Bytes{1047552});
  EXPECT_EQ(3 * 1_GiB, 1_GiB * 3);
  EXPECT_EQ((10_KiB) / (4_KiB), 2u);
  EXPECT_LT(1023_B, 1_KiB);
  Bytes sum = 1_KiB;
  sum += 1_B;
  sum -= 1_KiB;
  EXPECT_EQ(sum, 1_B);
  EXPECT_EQ(FileOffset{5} + 7_B, FileOffset{12});
}

TEST(Bytes, WhatDoesNotFitIsTheLargestSize) {
  const Bytes most{kMaxCount};
  EXPECT_EQ(most + 1_B, most);
  EXPECT_EQ(Bytes{1ULL << 63} + Bytes{1ULL << 63}, most);
  EXPECT_EQ(Bytes{kMaxCount - 1} + 1_B, most);
  EXPECT_EQ(Bytes{1ULL << 32} * (1ULL << 32), most);
  EXPECT_EQ((1ULL << 33) * Bytes{1ULL << 32}, most);
  EXPECT_EQ(Bytes{1ULL << 32} * ((1ULL << 32) - 1), Bytes{kMaxCount - (1ULL << 32) + 1});
  EXPECT_EQ(most * 0, 0_B);
  Bytes sum = most;
  sum += most;
  EXPECT_EQ(sum, most);
  EXPECT_EQ(FileOffset{kMaxCount} + 1_B, FileOffset{kMaxCount});
  EXPECT_EQ(SaturatingAdd(kMaxCount, kMaxCount), kMaxCount);
  EXPECT_EQ(SaturatingMultiply(3, kMaxCount / 2), kMaxCount);
  EXPECT_EQ(SaturatingMultiply(kMaxCount, 1), kMaxCount);
}

TEST(BytesDeathTest, LessThanZeroIsABrokenContract) {
  EXPECT_DEATH(static_cast<void>(1_KiB - 1025_B), "1024 bytes less 1025");
  EXPECT_EQ(1_KiB - 1_KiB, 0_B);
}

TEST(AlignUp, BeyondTheLargestSizeIsThat) {
  EXPECT_EQ(AlignUp(Bytes{kMaxCount - 1}, 512_B), Bytes{kMaxCount});
  EXPECT_EQ(AlignUp(Bytes{kMaxCount - 511}, 512_B), Bytes{kMaxCount - 511});
}

TEST(AlignUp, GivesTheSmallestMultipleThatIsNotBelow) {
  EXPECT_EQ(AlignUp(0_B, 512_B), 0_B);
  EXPECT_EQ(AlignUp(1_B, 512_B), 512_B);
  EXPECT_EQ(AlignUp(512_B, 512_B), 512_B);
  EXPECT_EQ(AlignUp(513_B, 512_B), 1024_B);
  EXPECT_EQ(AlignUp(7_B, 3_B), 9_B);
}

TEST(ToString, PicksTheLargestUnitThatIsNotBelowOne) {
  EXPECT_EQ(ToString(0_B), "0 bytes");
  EXPECT_EQ(ToString(1023_B), "1023 bytes");
  EXPECT_EQ(ToString(1536_MiB), "1.50 GiB");
  EXPECT_EQ(ToString(64_MiB), "64.0 MiB");
  EXPECT_EQ(ToString(3072_GiB), "3.00 TiB");
}

TEST(ParseBytes, ReadsPlainBytesAndPowersOf1024) {
  EXPECT_EQ(*ParseBytes("0"), 0_B);
  EXPECT_EQ(*ParseBytes("4096"), 4096_B);
  EXPECT_EQ(*ParseBytes("512KiB"), 512_KiB);
  EXPECT_EQ(*ParseBytes("64MiB"), 64_MiB);
  EXPECT_EQ(*ParseBytes("1.5GiB"), 1536_MiB);
  EXPECT_EQ(*ParseBytes("2TiB"), 2048_GiB);
}

TEST(ParseBytes, KeepsEveryDigitOfPlainBytes) {
  EXPECT_EQ(*ParseBytes("9007199254740993"), Bytes{9007199254740993});
  EXPECT_EQ(*ParseBytes("9223372036854775807"), Bytes{std::numeric_limits<int64_t>::max()});
}

class ParseBytesRefuses : public testing::TestWithParam<std::string> {};

TEST_P(ParseBytesRefuses, AndNamesWhatItRead) {
  const Result<Bytes> size = ParseBytes(GetParam());
  ASSERT_FALSE(size.ok()) << ToString(*size);
  EXPECT_EQ(size.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(size.error().message, testing::HasSubstr("\"" + GetParam() + "\""));
}

INSTANTIATE_TEST_SUITE_P(Texts, ParseBytesRefuses,
                         testing::Values("", "MiB", "64MB", "64M", "64mib", "64 MiB", " 64MiB",
                                         "64MiB ", "-1", "-0", "-1MiB", "+5", "1.5", "0.0001KiB",
                                         "1e3", "1e3MiB", "0x10", "nan", "inf", "infinity",
                                         "1,5GiB", "1.5.5GiB", "9223372036854775808",
                                         "99999999999999999999", "8388608TiB", "1e400"));

TEST(ParseWhole, ReadsDecimalDigitsUpToTheLast64BitNumber) {
  EXPECT_EQ(*ParseWhole("0"), 0U);
  EXPECT_EQ(*ParseWhole("010"), 10U);
  EXPECT_EQ(*ParseWhole("18446744073709551615"), std::numeric_limits<uint64_t>::max());
}

TEST(ParseWhole, KeepsToTheRange) {
  EXPECT_EQ(*ParseWhole("1", {1, 8}), 1U);
  EXPECT_EQ(*ParseWhole("8", {1, 8}), 8U);
  for (const char* outside : {"0", "9", "18446744073709551616"}) {
    const Result<uint64_t> number = ParseWhole(outside, {1, 8});
    ASSERT_FALSE(number.ok()) << *number;
    EXPECT_EQ(number.error().message,
              "\"" + std::string(outside) + "\" is not a whole number from 1 to 8");
  }
}

TEST(ParseWhole, CutsALongTextShort) {
  const Result<uint64_t> number = ParseWhole(std::string(5000, '9'));
  ASSERT_FALSE(number.ok());
  EXPECT_LT(number.error().message.size(), 120U);
}

class ParseWholeRefuses : public testing::TestWithParam<std::string> {};

TEST_P(ParseWholeRefuses, AndNamesWhatItReadAndTheRange) {
  const Result<uint64_t> number = ParseWhole(GetParam());
  ASSERT_FALSE(number.ok()) << *number;
  EXPECT_EQ(number.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(number.error().message,
            "\"" + GetParam() + "\" is not a whole number from 0 to 18446744073709551615");
}

INSTANTIATE_TEST_SUITE_P(Texts, ParseWholeRefuses,
                         testing::Values("", "-1", "-0", "+1", "abc", "1a", "0x10", "1e3", "1.0",
                                         " 1", "1 ", "1,000", "1'000", "1_000", "nan", "true",
                                         "18446744073709551616", "99999999999999999999"));

}  // namespace
}  // namespace penstock
