#include "train/process/interrupt.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>

#include "base/check.h"

namespace penstock::train {
namespace {

constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGHUP};

// What a signal handler may touch: lock-free atomics and async-signal-safe calls.
constexpr int64_t kNone = -1;
std::atomic<int64_t> g_first = kNone;    ///< when the first signal came, by Now
std::atomic<int64_t> g_one_request = 0;  ///< nanoseconds
std::atomic<bool> g_exists = false;      ///< whether an Interrupt exists
std::atomic<const char*> g_notice = nullptr;
static_assert(std::atomic<int64_t>::is_always_lock_free);
static_assert(std::atomic<const char*>::is_always_lock_free);

void WriteToStderr(const char* text) {
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, text, std::strlen(text));
}

/// Nanoseconds of the steady clock.
int64_t Now() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void TakeSignal() {
  const int64_t now = Now();
  int64_t first = kNone;
  const bool is_first = g_first.compare_exchange_strong(first, now);
  if (!is_first && now - first < g_one_request) return;
  const char* notice = g_notice;
  // The work has ended.
  if (is_first && notice == nullptr) return;
  // The progress line may be open: the notice and the shell's prompt have lines of their own.
  if (::isatty(STDERR_FILENO) != 0) WriteToStderr("\n");
  if (!is_first) ::_exit(130);
  WriteToStderr(notice);
  WriteToStderr("\n");
}

extern "C" void HandleSignal(int) {
  const int error = errno;
  TakeSignal();
  errno = error;
}

}  // namespace

Interrupt::Interrupt(const char* notice, std::chrono::nanoseconds one_request) {
  PENSTOCK_CHECK(!g_exists.exchange(true), "two Interrupts at a time");
  g_one_request = one_request.count();
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

bool Interrupt::requested() const { return g_first.load() != kNone; }

}  // namespace penstock::train
