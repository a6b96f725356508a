#include "train/launch/signal_queue.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace penstock::train {

Result<SignalQueue> SignalQueue::Create() {
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCHLD}) {
    struct sigaction previous = {};
    PENSTOCK_CHECK(::sigaction(signal, nullptr, &previous) == 0, "errno {}", errno);
    const bool may_be_ignored = signal == SIGHUP || signal == SIGTSTP;
    if (may_be_ignored && previous.sa_handler == SIG_IGN) continue;
    sigaddset(&taken, signal);
  }
  const int error = ::pthread_sigmask(SIG_BLOCK, &taken, nullptr);
  PENSTOCK_CHECK(error == 0, "errno {}", error);
  // The parent may have it ignored; then the kernel would discard the ends of children.
  std::signal(SIGCHLD, SIG_DFL);
  UniqueFd fd(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return ErrnoError(errno, "taking signals");
  return SignalQueue(std::move(fd));
}

std::vector<int> SignalQueue::Take() const {
  std::vector<int> signals;
  signalfd_siginfo info = {};
  while (true) {
    const ssize_t got = ::read(fd_.get(), &info, sizeof(info));
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof(info)) return signals;
    signals.push_back(static_cast<int>(info.ssi_signo));
  }
}

void SignalQueue::StopUntilContinued() {
  // While the signal is unblocked, its default action stops the process, unless no process could
  // continue it (an orphaned process group).
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  std::signal(SIGTSTP, SIG_DFL);
  ::raise(SIGTSTP);
  ::pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
  ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);
}

}  // namespace penstock::train
