// Starts threads, which the system may refuse.
#pragma once

#include <cstddef>
#include <new>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/result.h"

namespace penstock {

/// The kernel truncates names of threads to this many characters.
inline constexpr size_t kMaxThreadName = 15;

/// Returns the error that `what` gets no thread.
Error NoThread(std::string_view what, const std::error_code& why);

/// Starts a thread that runs `work`. Errors: kUnavailable, naming `what`, if the system gives none.
template <typename Work>
Result<std::thread> StartThread(std::string_view what, Work work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& error) {
    return NoThread(what, error.code());
  } catch (const std::bad_alloc&) {
    return NoThread(what, std::make_error_code(std::errc::not_enough_memory));
  }
}

}  // namespace penstock
