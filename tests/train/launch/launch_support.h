// Launches of shells that run a script in a folder of the test's own: what their tests share.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "tests/temp_folder.h"
#include "train/launch/launch.h"

namespace penstock::train {

/// A test that waits for it hangs.
inline constexpr std::chrono::hours kForEver{1};
inline constexpr std::chrono::milliseconds kSoon{20};
/// Ranks that do not end by themselves are not ended. Every signal is a separate request.
inline constexpr Patience kEndless = {
    .terminate = kForEver, .kill = kForEver, .leave = kForEver, .one_request = {}};

/// What scripts of ranks use: `await FILE` waits until another rank has made it; `rest` waits for
/// signals.
inline constexpr const char* kPrelude = R"(
await() { until [ -e "$1" ]; do sleep 0.01; done; }
rest() { while :; do sleep 0.01; done; }
)";

inline std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Has a standard descriptor go into a file.
class Redirection {
 public:
  Redirection(int fd, const std::string& path) : fd_(fd), saved_(::fcntl(fd, F_DUPFD_CLOEXEC, 3)) {
    const UniqueFd file(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600));
    PENSTOCK_CHECK(saved_.valid() && ::dup2(file.get(), fd) == fd);
  }
  ~Redirection() { ::dup2(saved_.get(), fd_); }
  Redirection(const Redirection&) = delete;
  Redirection& operator=(const Redirection&) = delete;

 private:
  int fd_;
  UniqueFd saved_;
};

/// Sets a variable of the environment. No other thread exists. NOLINTBEGIN(concurrency-mt-unsafe)
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    if (const char* before = ::getenv(name_.c_str()); before != nullptr) before_ = before;
    ::setenv(name_.c_str(), value.c_str(), 1);
  }
  ~Variable() {
    if (before_.has_value()) {
      ::setenv(name_.c_str(), before_->c_str(), 1);
    } else {
      ::unsetenv(name_.c_str());
    }
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  std::string name_;
  std::optional<std::string> before_;
};
// NOLINTEND(concurrency-mt-unsafe)

/// Ranks are shells that run a script in a folder of the test's own.
class LaunchTest : public testing::Test {
 protected:
  struct Outcome {
    int code = -1;
    std::string out;
    std::string err;
  };

  void SetUp() override {
    ASSERT_EQ(::chdir(temp_.Path().c_str()), 0);
    std::signal(SIGPIPE, SIG_IGN);  // as the program has it
    setting_.program = "/bin/sh";
    setting_.patience = kEndless;
  }
  void TearDown() override { ASSERT_EQ(::chdir("/"), 0); }

  /// Runs `launch` while what goes to stdout and stderr goes into the files "out" and "err".
  Outcome Captured(const std::function<Result<int>()>& launch) {
    const Redirection out(STDOUT_FILENO, temp_.Path("out"));
    const Redirection err(STDERR_FILENO, temp_.Path("err"));
    const Result<int> code = launch();
    return {.code = code.ok() ? *code : -1, .out = temp_.Read("out"), .err = temp_.Read("err")};
  }

  Outcome Run(uint32_t ranks, const std::string& script) {
    command_.ranks = ranks;
    command_.arguments = {"-c", kPrelude + script};
    return Captured([this] { return RunLaunch(command_, setting_); });
  }

  /// Puts the ranks on hosts that a script of ours reaches in ssh's place.
  void UseHosts(const std::string& hostfile, const std::string& ssh = kStandIn) {
    command_.hostfile = temp_.Write("hosts", hostfile);
    temp_.Write("bin/ssh", "#!/bin/sh\n" + ssh);
    ASSERT_EQ(::chmod(temp_.Path("bin/ssh").c_str(), 0700), 0);
  }

  /// Runs the command here, with the signals that sshd gives it. The words before it are in the
  /// file "called".
  static constexpr const char* kStandIn =
      "echo \"$*\" >> words; echo \"$*\" | head -1 | grep -o -e '-T [^ ]*' >> called; for word; do "
      "command=$word; done; "
      "exec env --default-signal sh -c \"$command\"\n";

  TempFolder temp_;
  Variable path_{"PATH", temp_.Path("bin") + ":/usr/bin:/bin"};
  LaunchCommand command_;
  LaunchSetting setting_;
};

/// Ranks 0 and 1 write down what signals they get and end at SIGTERM; rank 2 sends the launcher one
/// signal, and when both have it, another one.
inline constexpr const char* kSignals = R"(
  [ $RANK = 2 ] && {
    trap : INT; trap 'exit 130' TERM
    await ready0; await ready1; kill -INT $LAUNCHER
    await got0; await got1; kill -TERM $LAUNCHER; rest
  }
  trap 'echo INT >> got$RANK' INT
  trap 'echo TERM >> got$RANK; [ $RANK = 0 ] || echo "rank 0 ended"; exit 130' TERM
  : > ready$RANK; rest)";

}  // namespace penstock::train
