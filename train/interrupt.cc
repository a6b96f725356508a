#include "train/interrupt.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>

#include "base/check.h"

namespace penstock::train {
namespace {

constexpr std::array<int, 2> kSignals = {SIGINT, SIGTERM};

// What a signal handler may touch: lock-free atomics and async-signal-safe calls.
std::atomic<int> g_signals = 0;
std::atomic<bool> g_installed = false;
static_assert(std::atomic<int>::is_always_lock_free);

std::array<struct sigaction, kSignals.size()> g_previous;

extern "C" void HandleSignal(int) {
  if (g_signals.fetch_add(1) == 0) return;
  // The progress line may be open: leave the shell's prompt a line of its own.
  if (::isatty(STDERR_FILENO) != 0) {
    [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, "\n", 1);
  }
  ::_exit(130);
}

}  // namespace

Interrupt::Interrupt() {
  PENSTOCK_CHECK(!g_installed.exchange(true), "two Interrupts at a time");
  g_signals = 0;
  struct sigaction action = {};
  action.sa_handler = HandleSignal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    PENSTOCK_CHECK(::sigaction(kSignals[i], &action, &g_previous[i]) == 0, "errno {}", errno);
  }
}

Interrupt::~Interrupt() {
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &g_previous[i], nullptr);
  g_installed = false;
}

bool Interrupt::requested() const { return g_signals.load() > 0; }

}  // namespace penstock::train
