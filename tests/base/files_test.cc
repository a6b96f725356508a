#include "base/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/temp_folder.h"

namespace penstock {
namespace {

using testing::ElementsAre;

TEST(InputFile, ContinuesAfterInterruptionsAndShortReads) {
  const TempFolder folder;
  const InputFile file = InputFile::Open(folder.Write("a", "0123456789")).value();
  static int calls = 0;
  const PreadFunction slow = [](int fd, void* buffer, size_t, off_t offset) -> ssize_t {
    if (++calls % 2 == 1) {
      errno = EINTR;
      return -1;
    }
    return ::pread(fd, buffer, 1, offset);
  };
  std::string text(7, ' ');
  ASSERT_TRUE(file.Read(FileOffset{2}, std::as_writable_bytes(std::span(text)), slow).ok());
  EXPECT_EQ(text, "2345678");
  EXPECT_EQ(calls, 14);
}

TEST(InputFile, AFailedReadSaysWhereAndWhy) {
  const TempFolder folder;
  const InputFile file = InputFile::Open(folder.Write("a", "0123456789")).value();
  const PreadFunction broken = [](int fd, void* buffer, size_t, off_t offset) -> ssize_t {
    if (offset == 5) return ::pread(fd, buffer, 2, offset);
    errno = EIO;
    return -1;
  };
  std::string text(4, ' ');
  EXPECT_TRUE(FailsWith(file.Read(FileOffset{5}, std::as_writable_bytes(std::span(text)), broken),
                        ErrorCode::kIo, {folder.Path("a"), "2 bytes at offset 7", "Input/output"}));
}

TEST(NewFile, IsRefusedWhereOneIsOrCannotBe) {
  const TempFolder folder;
  EXPECT_TRUE(FailsWith(CheckNewFile("--plot", folder.Write("taken", "mine")),
                        ErrorCode::kInvalidArgument, {"--plot", "it exists"}));
  EXPECT_TRUE(
      FailsWith(CheckNewFile("--plot", folder.Path("no/where")), ErrorCode::kNotFound, {"no"}));
  EXPECT_TRUE(CheckNewFile("--plot", folder.Path("free")).ok());
}

TEST(NamesIn, AreSortedAndAMissingFolderIsAnError) {
  const TempFolder folder;
  for (const char* name : {"b", ".c", "a"}) folder.Write(name, "");
  EXPECT_THAT(NamesIn(folder.Path("")).value(), ElementsAre(".c", "a", "b"));
  EXPECT_TRUE(FailsWith(NamesIn(folder.Path("no")).status(), ErrorCode::kNotFound, {"no"}));
}

TEST(OutputFile, AppearsWholeAndOnlyWhenFinished) {
  const TempFolder folder;
  const std::string_view text = "0123456789";
  {
    const auto file = OutputFile::Create(folder.Path("a"), Bytes{text.size()}).value();
    ASSERT_TRUE(file->Append(std::as_bytes(std::span(text.substr(0, 4)))).ok());
    EXPECT_FALSE(folder.Has("a"));
    ASSERT_TRUE(file->Append(std::as_bytes(std::span(text.substr(4)))).ok());
    ASSERT_TRUE(file->Finish().ok());
  }
  EXPECT_EQ(folder.Read("a"), text);
  EXPECT_THAT(folder.List(), ElementsAre("a"));
}

TEST(OutputFile, LeavesNothingWithoutFinish) {
  const TempFolder folder;
  const std::string old = folder.Write("a", "old");
  {
    const auto file = OutputFile::Create(folder.Path("a"), 4_B).value();
    ASSERT_TRUE(file->Append(std::as_bytes(std::span("abcd", 4))).ok());
  }
  EXPECT_THAT(folder.List(), ElementsAre("a"));
  EXPECT_EQ(folder.Read("a"), "old");
}

TEST(OutputFile, AFileOfItsTemporaryNameStays) {
  const TempFolder folder;
  const std::string taken = fmt::format("a.tmp-{}", ::getpid());
  folder.Write(taken, "mine");
  ASSERT_TRUE(WriteTextFile(folder.Path("a"), "text").ok());
  EXPECT_EQ(folder.Read(taken), "mine");
  EXPECT_EQ(folder.Read("a"), "text");
  EXPECT_EQ(WithoutTemporary(taken), "a");
  for (const char* name : {"a", "a.tmp-", "a.tmp-x", "a.tmp-1x", "a.tmp"}) {
    EXPECT_EQ(WithoutTemporary(name), name);
  }
}

TEST(ReadTextFile, RefusesAPipeWithoutWaitingForIt) {
  const TempFolder folder;
  const std::string path = folder.Path("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_TRUE(FailsWith(ReadTextFile(path, 1_MiB), ErrorCode::kInvalidArgument, {path, "pipe"}));
  EXPECT_TRUE(FailsWith(ReadTextFile(folder.Open(), "pipe", 1_MiB), ErrorCode::kCorruption,
                        {path, "a pipe"}));
  EXPECT_TRUE(FailsWith(ReadTextFileOrPipe("/dev/null", 1_MiB), ErrorCode::kInvalidArgument,
                        {"/dev/null", "device"}));
}

TEST(OutputFile, AMissingFolderIsNotFound) {
  const TempFolder folder;
  EXPECT_TRUE(FailsWith(OutputFile::Create(folder.Path("no/a"), 1_B), ErrorCode::kNotFound,
                        {folder.Path("no/a")}));
}

TEST(WriteTextFile, ReplacesNothingWhereItMustNotAndLeavesNothing) {
  const TempFolder folder;
  folder.Write("a", "mine");
  EXPECT_TRUE(FailsWith(WriteTextFile(folder.Path("a"), "new", IfExists::kFail),
                        ErrorCode::kInvalidArgument, {folder.Path("a"), "not replaced"}));
  EXPECT_TRUE(WriteTextFile(folder.Path("b"), "new", IfExists::kFail).ok());
  EXPECT_THAT(folder.List(), ElementsAre("a", "b"));
  EXPECT_EQ(folder.Read("a"), "mine");
  EXPECT_EQ(folder.Read("b"), "new");
}

TEST(WriteTextFile, ReplacesTheWholeFile) {
  const TempFolder folder;
  ASSERT_TRUE(WriteTextFile(folder.Path("x"), "a long first text").ok());
  ASSERT_TRUE(WriteTextFile(folder.Path("x"), "short").ok());
  EXPECT_EQ(folder.Read("x"), "short");
  EXPECT_THAT(folder.List(), ElementsAre("x"));
}

TEST(DropOtherNames, LeavesTheFileToItsOtherNameAndTakesACopy) {
  const TempFolder folder;
  const std::string file = folder.Write("a", "text");
  EXPECT_FALSE(HasOtherName(file));
  EXPECT_FALSE(HasOtherName(folder.Path("missing")));
  std::filesystem::create_hard_link(file, folder.Path("b"));
  EXPECT_TRUE(HasOtherName(file));
  ASSERT_TRUE(DropOtherNames(folder.Open(), "a").ok());
  EXPECT_FALSE(HasOtherName(file));
  folder.Write("a", "other");
  EXPECT_EQ(folder.Read("b"), "text");
  const FileId before = IdAt(file).value();
  ASSERT_TRUE(DropOtherNames(folder.Open(), "a").ok());
  EXPECT_EQ(IdAt(file).value(), before) << "it was its own already";
  EXPECT_TRUE(DropOtherNames(folder.Open(), "missing").ok());
}

TEST(ReadTextFile, RefusesWhatIsTooLargeOrAFolder) {
  const TempFolder folder;
  const std::string path = folder.Write("a", "12345");
  EXPECT_EQ(ReadTextFile(path, 5_B).value(), "12345");
  EXPECT_TRUE(FailsWith(ReadTextFile(path, 4_B), ErrorCode::kInvalidArgument, {path, "4 bytes"}));
  EXPECT_TRUE(FailsWith(ReadTextFile(folder.Path(), 4_B), ErrorCode::kInvalidArgument,
                        {folder.Path(), "a folder"}));
}

TEST(ReadTextFileOrPipe, ReadsAPipeToItsEnd) {
  const TempFolder folder;
  const std::string path = folder.Path("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const std::string text(100'000, 'x');
  std::thread writer([&] { std::ofstream(path) << text; });
  EXPECT_EQ(ReadTextFileOrPipe(path, 1_MiB).value(), text);
  writer.join();
}

}  // namespace
}  // namespace penstock
