#include "train/process/interrupt.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/check.h"

namespace penstock::train {
namespace {

constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGHUP};

// What a signal handler may touch: lock-free atomics and async-signal-safe calls.
std::atomic<int> g_signals = 0;
std::atomic<bool> g_exists = false;  ///< an Interrupt
std::atomic<const char*> g_notice = nullptr;
static_assert(std::atomic<int>::is_always_lock_free);
static_assert(std::atomic<const char*>::is_always_lock_free);

void WriteToStderr(const char* text) {
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text, std::strlen(text));
}

extern "C" void HandleSignal(int) {
  const int error = errno;
  const bool first = g_signals.fetch_add(1) == 0;
  const char* notice = g_notice;
  // The work has ended.
  if (first && notice == nullptr) return;
  // The progress line may be open: the notice and the shell's prompt have lines of their own.
  if (::isatty(STDERR_FILENO) != 0) WriteToStderr("\n");
  if (!first) ::_exit(130);
  WriteToStderr(notice);
  WriteToStderr("\n");
  errno = error;
}

}  // namespace

Interrupt::Interrupt(const char* notice) {
  PENSTOCK_CHECK(!g_exists.exchange(true), "two Interrupts at a time");
  g_notice = notice;
  struct sigaction action = {};
  action.sa_handler = HandleSignal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals) {
    struct sigaction previous = {};
    PENSTOCK_CHECK(::sigaction(signal, nullptr, &previous) == 0, "errno {}", errno);
    if (signal == SIGHUP && previous.sa_handler == SIG_IGN) continue;
    PENSTOCK_CHECK(::sigaction(signal, &action, nullptr) == 0, "errno {}", errno);
  }
}

Interrupt::~Interrupt() {
  g_notice = nullptr;
  g_exists = false;
}

bool Interrupt::requested() const { return g_signals.load() > 0; }

}  // namespace penstock::train
