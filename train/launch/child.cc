#include "train/launch/child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "base/unique_fd.h"

namespace penstock::train {
namespace {

/// The array that execve takes: pointers to the texts, and a null pointer.
std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  // execve does not write to them.
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

void SetSignals(bool interruptible) {
  for (const int signal : {SIGTSTP, SIGCHLD, SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_DFL);
  for (const int signal : {SIGINT, SIGTERM}) {
    std::signal(signal, interruptible ? SIG_DFL : SIG_IGN);
  }
  if (!interruptible) std::signal(SIGHUP, SIG_IGN);
  // SIGHUP is ignored under nohup, and stays so. A terminal may stop background processes that
  // write to it (stty tostop).
  std::signal(SIGTTOU, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

/// Becomes the program, between fork and exec: without memory of its own. Returns errno on failure.
int BecomeProgram(const ChildCommand& command, char* const* arguments, char* const* environment,
                  pid_t parent) {
  if (::setpgid(0, 0) != 0) return errno;
  if (command.ends_with_parent && ::prctl(PR_SET_PDEATHSIG, SIGTERM) != 0) return errno;
  if (::getppid() != parent) return ECANCELED;  // gone before the kernel was asked
  SetSignals(command.interruptible);
  if (::dup2(command.stdin_fd, STDIN_FILENO) < 0 || ::dup2(command.stdout_fd, STDOUT_FILENO) < 0 ||
      ::dup2(command.stderr_fd, STDERR_FILENO) < 0) {
    return errno;
  }
  ::execvpe(command.program.c_str(), arguments, environment);
  return errno;
}

/// Waits for the errno of BecomeProgram; 0 if the program runs.
int WaitForProgram(int reader) {
  int error = 0;
  ssize_t got = 0;
  do {
    got = ::read(reader, &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  return got == sizeof(error) ? error : 0;
}

Error NoProcess(int error, const std::string& program) {
  if (error == EAGAIN) {
    return MakeError(ErrorCode::kUnavailable,
                     "starting {}: {}; raise the limit of processes (ulimit -u, or a container's "
                     "pids)",
                     program, ErrnoText(error));
  }
  return ErrnoError(error, "starting " + program);
}

int WaitFor(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace

Result<Child> Child::Start(const ChildCommand& command) {
  const std::vector<char*> arguments = Pointers(command.arguments);
  const std::vector<char*> environment = Pointers(command.environment);
  std::array<int, 2> ends = {};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoError(errno, "making a pipe for a rank");
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return NoProcess(errno, command.program);
  if (pid == 0) {
    const int error = BecomeProgram(command, arguments.data(), environment.data(), parent);
    [[maybe_unused]] const ssize_t ignored = ::write(writer.get(), &error, sizeof(error));
    ::_exit(3);
  }
  writer = UniqueFd();
  const int error = WaitForProgram(reader.get());
  if (error == 0) return Child(pid);
  WaitFor(pid);
  return NoProcess(error, command.program);
}

Child::~Child() {
  if (pid_ == 0) return;
  Signal(SIGKILL);
  WaitFor(pid_);
}

void Child::Signal(int signal) const {
  if (pid_ != 0) ::kill(-pid_, signal);
}

std::optional<int> Child::Poll() {
  int status = 0;
  if (pid_ == 0 || ::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  pid_ = 0;
  return status;
}

}  // namespace penstock::train
