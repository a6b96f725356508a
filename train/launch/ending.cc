#include "train/launch/ending.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <cstring>

#include "base/result.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

// Exit codes of ssh, and of a shell that cannot run a program.
constexpr int kSshFailed = 255;
constexpr int kNotExecutable = 126;
constexpr int kNoSuchProgram = 127;

}  // namespace

Ending EndingOf(uint32_t rank, int wait_status, bool elsewhere) {
  Ending ending{.rank = rank, .elsewhere = elsewhere};
  if (WIFSIGNALED(wait_status)) {
    ending.signal = WTERMSIG(wait_status);
  } else {
    ending.code = WEXITSTATUS(wait_status);
  }
  return ending;
}

int ExitCodeOf(const Ending& ending) {
  if (ending.signal != 0) return ExitCode(ErrorCode::kUnavailable);
  const bool is_of_ssh =
      ending.code == kSshFailed || ending.code == kNotExecutable || ending.code == kNoSuchProgram;
  return ending.elsewhere && is_of_ssh ? ExitCode(ErrorCode::kUnavailable) : ending.code;
}

bool HasReported(const Ending& ending) {
  return ending.signal == 0 && ending.code >= ExitCode(ErrorCode::kInvalidArgument) &&
         ending.code <= ExitCode(ErrorCode::kNumeric);
}

std::string EndingText(const Ending& ending) {
  if (ending.signal != 0) {
    const char* description = ::sigdescr_np(ending.signal);
    return fmt::format("was killed by signal {} ({}){}", ending.signal,
                       description != nullptr ? description : "unknown",
                       ending.elsewhere ? ", or its ssh was" : "");
  }
  if (ending.elsewhere && ending.code == kSshFailed) {
    return "ended with ssh's exit code 255: there is no connection, or it broke, or the rank was "
           "killed";
  }
  if (ending.elsewhere && (ending.code == kNotExecutable || ending.code == kNoSuchProgram)) {
    return fmt::format(
        "ended with the shell's exit code {}: the program does not run there; it and the working "
        "folder have to have the same path on all hosts",
        ending.code);
  }
  return fmt::format("ended with exit code {}", ending.code);
}

}  // namespace penstock::train
