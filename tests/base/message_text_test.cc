#include "base/message_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace penstock {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(MessageTextTest, WhatSteersATerminalIsShownAsWhatItIs) {
  EXPECT_EQ(Printable("a\x1b[2Jb\x07"), "a\\u001b[2Jb\\u0007");
  EXPECT_EQ(Printable("\x7f\xc2\x9b"), "\\u007f\\u009b") << "DEL, and CSI of the second set";
  EXPECT_EQ(Printable(std::string("\0", 1)), "\\u0000");
  EXPECT_EQ(Printable("two\n\tlines"), "two\n\tlines");
}

TEST(MessageTextTest, PrintableTextStaysAndBytesThatAreNoneAreNamed) {
  const std::string text = "plain, \xc3\xa9, \xe2\x82\xac, \xf0\x9f\x98\x80, \xc2\xa0";
  EXPECT_EQ(Printable(text), text);
  EXPECT_EQ(Printable("\xff"), "\\xff");
  EXPECT_EQ(Printable("\xc3"), "\\xc3") << "cut off";
  EXPECT_EQ(Printable("\xc0\xaf"), "\\xc0\\xaf") << "longer than need be";
  EXPECT_EQ(Printable("\xe0\x80\xaf"), "\\xe0\\x80\\xaf");
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "above the last character";
  EXPECT_EQ(Printable("\xc3x"), "\\xc3x");
}

TEST(MessageTextTest, AMessageIsOneLine) {
  EXPECT_EQ(MessageLine("a\nb\r\nc\n"), "a b  c");
  EXPECT_EQ(MessageLine("a\tb  c"), "a b  c");
  EXPECT_EQ(MessageLine(""), "");
}

TEST(MessageTextTest, ALongWordKeepsItsEndsAndTheTextBehindIt) {
  const std::string word = "/begin/" + std::string(100'000, 'x') + "/end";
  const std::string line = MessageLine("--out " + word + ": it exists already; remove it");
  EXPECT_LT(line.size(), kMaxMessageWord);
  for (const char* part : {"--out /begin/xx", "(100012 bytes)", "xx/end: it exists already"}) {
    EXPECT_THAT(line, HasSubstr(part));
  }
  EXPECT_EQ(MessageLine(std::string(kMaxMessageWord, 'x')), std::string(kMaxMessageWord, 'x'));
}

TEST(MessageTextTest, ALongTextKeepsItsEnds) {
  std::string text = "begin";
  while (text.size() < 100'000) text += " \xc3\xa9";
  const std::string line = MessageLine(text + " end");
  EXPECT_LE(line.size(), kMaxMessage);
  EXPECT_TRUE(line.starts_with("begin ") && line.ends_with(" end"));
  EXPECT_EQ(Printable(line), line) << "no character is cut in two";
  EXPECT_THAT(line, Not(HasSubstr("\\x")));
}

}  // namespace
}  // namespace penstock
