// Errors that the environment or the user can cause, as values that cannot be ignored.
//
// Three kinds of failure exist in this code base. A broken contract between our own parts is a
// PENSTOCK_CHECK (base/check.h). What a user, a file, a drive or a device can cause is a Status or
// a Result<T>. Exceptions come only from libraries and are caught at the edge: where a thread
// starts.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace penstock {

/// What kind of failure it is; the command line derives its exit code from this and nothing else.
enum class ErrorCode {
  kInvalidArgument,  ///< usage, config, model or data is wrong (exit 2)
  kBudget,           ///< a memory budget is too small for the job (exit 2)
  kNotFound,         ///< a path is missing (exit 3)
  kPermission,       ///< a path is not writable or readable (exit 3)
  kOutOfSpace,       ///< ENOSPC, EDQUOT, EFBIG (exit 3)
  kOutOfMemory,      ///< the machine or the device has no memory left (exit 3)
  kIo,               ///< a read or a write failed or was short (exit 3)
  kUnavailable,      ///< no such device or engine, no O_DIRECT, file in use (exit 3)
  kCorruption,       ///< a checksum or a format is wrong (exit 3)
  kNumeric,          ///< non-finite values where they cannot be skipped (exit 4)
  kCancelled,        ///< interrupted, or given up because something else failed (exit 130)
};

/// A failure: its kind, and one line that says what failed, on what, why, and what to do.
struct Error {
  ErrorCode code;
  std::string message;
};

/// Builds an Error from a format string: MakeError(ErrorCode::kIo, "read of {} failed", path).
template <typename... Args>
Error MakeError(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error{code, fmt::format(format, std::forward<Args>(args)...)};
}

/// "No such file or directory" for ENOENT, in any locale. Any thread.
std::string ErrnoText(int error_number);

/// An Error made from an errno value: "<what>: <errno text>", with the code that fits it (ENOSPC is
/// kOutOfSpace, ENOENT kNotFound, EACCES and EROFS kPermission, ENOMEM kOutOfMemory, else kIo). If
/// a limit of the process is the cause, the message says how to raise it.
Error ErrnoError(int error_number, const std::string& what);

/// Success, or an Error.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return !error_.has_value(); }
  const Error& error() const {
    PENSTOCK_CHECK(error_.has_value());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

/// A value, or an Error. Reading the value of a failed Result is a broken contract.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(state_); }
  const Error& error() const {
    PENSTOCK_CHECK(!ok());
    return std::get<Error>(state_);
  }
  Status status() const { return ok() ? Status() : Status(error()); }

  T& value() & {
    PENSTOCK_CHECK(ok(), "{}", error_text());
    return std::get<T>(state_);
  }
  const T& value() const& {
    PENSTOCK_CHECK(ok(), "{}", error_text());
    return std::get<T>(state_);
  }
  T&& value() && {
    PENSTOCK_CHECK(ok(), "{}", error_text());
    return std::get<T>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::string error_text() const { return ok() ? "" : std::get<Error>(state_).message; }

  std::variant<T, Error> state_;
};

}  // namespace penstock

#define PENSTOCK_CONCAT_INNER(a, b) a##b
#define PENSTOCK_CONCAT(a, b) PENSTOCK_CONCAT_INNER(a, b)

/// Leaves the function with the error of `expression` (a Status or a Result), if it has one.
#define PENSTOCK_TRY(expression)                                      \
  do {                                                                \
    if (auto penstock_status = (expression); !penstock_status.ok()) { \
      return penstock_status.error();                                 \
    }                                                                 \
  } while (false)

/// PENSTOCK_ASSIGN(auto x, F()): x is the value of the Result, or the function returns its error.
#define PENSTOCK_ASSIGN(declaration, expression) \
  PENSTOCK_ASSIGN_INNER(PENSTOCK_CONCAT(penstock_result_, __LINE__), declaration, expression)
#define PENSTOCK_ASSIGN_INNER(result, declaration, expression) \
  auto result = (expression);                                  \
  if (!result.ok()) return result.error();                     \
  declaration = std::move(result).value()
