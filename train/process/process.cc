#include "train/process/process.h"

#include <execinfo.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>

#include "base/exception_name.h"
#include "base/message_text.h"
#include "base/units.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

/// The stack that glibc gives a thread if there is no limit.
constexpr Bytes kStack = 2_MiB;

/// Otherwise the next opened file would get the number, and messages for the user would go into it.
Status OpenStandardDescriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is this one. It stays open in the program that is started anew.
    if (::open("/dev/null", O_RDWR) < 0) {
      return ErrnoError(errno, "opening /dev/null in place of a closed descriptor");
    }
  }
  return {};
}

/// The main thread's stack grows up to the current limit; a new thread's stack has the size of the
/// limit at the program's start, unless another default is set.
Status ProvideStacks() {
  pthread_attr_t attributes;
  size_t size = 0;
  if (const int error = pthread_getattr_default_np(&attributes); error != 0) {
    return ErrnoError(error, "asking for the stack of new threads");
  }
  pthread_attr_getstacksize(&attributes, &size);
  if (size < kStack.value) {
    pthread_attr_setstacksize(&attributes, kStack.value);
    pthread_setattr_default_np(&attributes);
  }
  pthread_attr_destroy(&attributes);
  rlimit limit = {};
  if (::getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= kStack.value) return {};
  const Bytes given{limit.rlim_cur};
  limit.rlim_cur = kStack.value;
  if (limit.rlim_max >= kStack.value && ::setrlimit(RLIMIT_STACK, &limit) == 0) return {};
  return MakeError(ErrorCode::kUnavailable,
                   "the stack is limited to {}, and penstock needs {}; raise the limit (ulimit -s)",
                   ToString(given), ToString(kStack));
}

/// OpenMP's workers spin while they wait unless told otherwise before the library is loaded. They
/// share the cores with the optimizer's, the streams' and the I/O threads, which spinning keeps
/// from working: start again with the policy set. A policy of the user's stays.
void UsePassiveOpenMpWaits(char** argv) {
  // No other thread exists yet.
  // NOLINTNEXTLINE(concurrency-mt-unsafe)
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  // NOLINTNEXTLINE(concurrency-mt-unsafe)
  if (::setenv("OMP_WAIT_POLICY", "passive", 0) != 0) return;
  // Returns only on failure; then everything works, slower.
  ::execv("/proc/self/exe", argv);
}

/// An exception that passes glibc's own code, pthread_once say, has it load libgcc's unwinder;
/// where there is no memory left for that, glibc aborts. A trace of calls has it loaded now.
void LoadUnwinder() {
  void* caller = nullptr;
  static_cast<void>(::backtrace(&caller, 1));
}

/// Each thread's arena of its own would reserve 64 MiB of an address space that is limited.
void KeepToAddressSpace() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    // No other thread exists yet.
    ::mallopt(M_ARENA_MAX, 1);  // NOLINT(concurrency-mt-unsafe)
  }
}

/// Ends the program with one line: what happened, and `detail`, a library's text.
[[noreturn]] void EndWith(ErrorCode code, const char* what, std::string_view detail = {}) {
  // Allocates nothing: memory may be exhausted.
  static_cast<void>(
      std::fprintf(stderr, "penstock: error: %s%s", what, detail.empty() ? "" : ": "));
  while (!detail.empty() && (detail.back() == '\n' || detail.back() == '\r')) {
    detail.remove_suffix(1);
  }
  // As MessageLine, which allocates: removes control characters.
  for (const char c : detail.substr(0, kMaxMessage)) {
    const bool plain = c >= ' ' && c <= '~';
    static_cast<void>(std::fputc(plain ? c : c == '\n' || c == '\r' ? ' ' : '?', stderr));
  }
  static_cast<void>(
      std::fputs("; the program cannot continue; committed steps are kept\n", stderr));
  std::_Exit(ExitCode(code));
}

/// Handles an exception that cannot be reported to a caller, as in a thread. The process ends as if
/// killed.
[[noreturn]] void EndProgram() noexcept {
  constexpr const char* kUnexpected = "unexpected failure in a library";
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
    EndWith(ErrorCode::kIo, kUnexpected);
  } catch (const std::bad_alloc&) {
    EndWith(ErrorCode::kOutOfMemory,
            "the machine has no memory left; lower --device-memory or --host-memory");
  } catch (const std::exception& exception) {
    EndWith(ErrorCode::kIo, kUnexpected, ExceptionName(exception));
  } catch (...) {
    EndWith(ErrorCode::kIo, kUnexpected);
  }
}

}  // namespace

Status PrepareProcess(char** argv) {
  PENSTOCK_TRY(OpenStandardDescriptors());
  PENSTOCK_TRY(ProvideStacks());
  UsePassiveOpenMpWaits(argv);
  // The reader of our output may be gone, as `| tee` after Ctrl-C; that must not end a commit.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  std::set_terminate(EndProgram);
  LoadUnwinder();
  KeepToAddressSpace();
  return {};
}

}  // namespace penstock::train
