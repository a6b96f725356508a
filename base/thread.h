// Threads, which the system may refuse.
#pragma once

#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/result.h"

namespace penstock {

/// Why `what` has no thread.
Error NoThread(std::string_view what, const std::error_code& why);

/// A thread that runs `work`. `what` names it in the error: kUnavailable, where the system gives
/// none.
template <typename Work>
Result<std::thread> StartThread(std::string_view what, Work work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& error) {
    return NoThread(what, error.code());
  }
}

}  // namespace penstock
