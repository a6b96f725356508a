#include "train/launch/remote_command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "tests/deadline.h"
#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

/// What a login shell prints that gets `command`, as sshd gives it.
std::string OutputOf(const std::string& command) {
  // NOLINTNEXTLINE(cert-env33-c): the shell is what is tested
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "r"),
                                                             ::pclose);
  std::string output;
  for (int c = std::fgetc(pipe.get()); c != EOF; c = std::fgetc(pipe.get())) {
    output += static_cast<char>(c);
  }
  return output;
}

const std::vector<std::string> kHardWords = {
    "plain",       "",   "two words", "it's", "\"quoted\"", "$HOME", "`date`", "a\\b\\\\c",
    "line\nbreak", "*",  "~",         "#",    "'",          "''",    "!x",     "a;b&c|d>e",
    "\xff\xfe",    "-n", "{a,b}",     "\t"};

TEST(ShellWord, IsTheTextAgainForAnyCharacters) {
  for (const std::string& text : kHardWords) {
    EXPECT_EQ(OutputOf("printf %s " + ShellWord(text)), text);
  }
}

TEST(ShellWord, PlainTextStaysReadable) {
  EXPECT_EQ(ShellWord("/usr/bin/penstock"), "/usr/bin/penstock");
  EXPECT_EQ(ShellWord("--steps"), "--steps");
}

TEST(RemoteCommand, RunsTheProgramInTheFolderWithItsArgumentsAndVariables) {
  const TempFolder temp;
  temp.Write("it's a \"folder\"/x", "");
  const std::string folder = temp.Path("it's a \"folder\"");
  const std::string script = R"(pwd; printf '<%s>' "$A" "$B" "$SECRET" "$@"; cat)";
  std::vector<std::string> arguments = {"-c", script, "sh"};
  arguments.insert(arguments.end(), kHardWords.begin(), kHardWords.end());
  const std::string command = RemoteCommand({.folder = folder,
                                             .program = "/bin/sh",
                                             .arguments = arguments,
                                             .variables = {"A=it's", "B=x=y z"}});
  // Its input does not end as long as this one is open.
  ASSERT_EQ(::mkfifo(temp.Path("input").c_str(), 0600), 0);
  const UniqueFd input(::open(temp.Path("input").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::write(input.get(), "SECRET=of stdin\n", 16), 16);
  const std::string output = OutputOf("(" + command + ") < " + ShellWord(temp.Path("input")));
  std::string expected = folder + "\n<it's><x=y z><of stdin>";
  for (const std::string& word : kHardWords) expected += "<" + word + ">";
  EXPECT_EQ(output, expected) << "and its standard input is empty";
}

TEST(RemoteCommand, AFolderThatIsMissingThereIsAFailureOfTheEnvironment) {
  const TempFolder temp;
  const std::string command = RemoteCommand(
      {.folder = temp.Path("none"), .program = "/bin/true", .arguments = {}, .variables = {}});
  EXPECT_EQ(OutputOf("(" + command + ") 2>/dev/null; echo $?"), "126\n")
      << "what the launcher explains";
}

TEST(RemoteCommand, WithoutItsFirstLineNothingIsStarted) {
  const TempFolder temp;
  const std::string command = RemoteCommand(
      {.folder = temp.Path(), .program = "/bin/echo", .arguments = {"started"}, .variables = {}});
  EXPECT_EQ(OutputOf("(" + command + ") </dev/null"), "");
}

TEST(RemoteCommand, HandsOnSignalsAndTakesTheEndOfItsInputForTerm) {
  const TempFolder temp;
  const std::string script =
      "trap 'echo INT >> got' INT; trap 'echo TERM >> got; exit 0' TERM; : > ready; "
      "while :; do sleep 0.01; done";
  const std::string command = RemoteCommand(
      {.folder = temp.Path(), .program = "/bin/sh", .arguments = {"-c", script}, .variables = {}});
  // NOLINTNEXTLINE(cert-env33-c): the shell is what is tested
  std::FILE* rank = ::popen(command.c_str(), "w");
  std::fputs("SECRET=x\n", rank);
  std::fflush(rank);
  ASSERT_TRUE(BecomesTrue([&temp] { return temp.Has("ready"); }));
  std::fputs(SignalLine(SIGINT).c_str(), rank);
  std::fflush(rank);
  ASSERT_TRUE(BecomesTrue([&temp] { return temp.Has("got") && temp.Read("got") == "INT\n"; }));
  EXPECT_EQ(::pclose(rank), 0);
  EXPECT_EQ(temp.Read("got"), "INT\nTERM\n");
}

TEST(SignalLine, IsANameThatShellsKnow) {
  EXPECT_EQ(SignalLine(SIGINT), "INT\n");
  EXPECT_EQ(SignalLine(SIGTERM), "TERM\n");
  EXPECT_EQ(SignalLine(SIGHUP), "HUP\n");
  EXPECT_EQ(SignalLine(SIGKILL), "KILL\n");
  EXPECT_EQ(SignalLine(SIGSTOP), "STOP\n");
  EXPECT_EQ(SignalLine(SIGCONT), "CONT\n");
}

}  // namespace
}  // namespace penstock::train
