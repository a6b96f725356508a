// What every function of the C interface does: no exception leaves it, an error is a code and a
// line, and calls on one engine or run wait for each other.
//
// Threads: any.
#pragma once

#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>

#include "base/denormals.h"
#include "base/exception_name.h"
#include "base/result.h"
#include "front/engine_handle.h"
#include "front/penstock.h"
#include "front/run_handle.h"

namespace penstock::front {

int CodeOf(ErrorCode code);
/// Keeps a message as one line, for penstock_error, and returns the code. Without memory for the
/// message, the one before stays.
int Fail(int code, std::string_view message);
/// Returns the message of this thread's last call that failed.
const char* LastError();

Status Missing(const char* what);
/// Gives the caller a copy of a text, which penstock_free frees.
Status GiveText(const std::string& text, char** out);
/// Errors: kUnavailable in a fork of the process that made `what`.
Status CheckProcess(const char* what, pid_t process);

/// Calls `function`, which returns a Status, and turns its result into a code. The bits of a
/// training do not depend on how the caller's thread computes.
template <typename Function>
int Guard(Function function) {
  const DefaultArithmetic arithmetic;
  try {
    const Status status = function();
    if (status.ok()) return PENSTOCK_OK;
    return Fail(CodeOf(status.error().code), status.error().message);
  } catch (const std::bad_alloc&) {
    return Fail(PENSTOCK_OUT_OF_MEMORY, "the host has no memory left");
  } catch (const std::exception& error) {
    return Fail(PENSTOCK_INTERNAL, "unexpected failure in a library: " + ExceptionName(error));
  }
}

/// Calls `function` with the engine's training, one call at a time.
template <typename Function>
int With(penstock_engine* engine, Function function) {
  return Guard([&]() -> Status {
    if (engine == nullptr) return Missing("the engine");
    PENSTOCK_TRY(CheckProcess("engine", engine->process));
    const std::lock_guard lock(engine->mutex);
    if (engine->training == nullptr) {
      return MakeError(ErrorCode::kUnavailable, "the engine was closed, because the process ends");
    }
    const std::optional<ContextScope> scope = engine->training->Enter();
    try {
      return function(*engine->training);
    } catch (...) {
      engine->training->Abandon();  // it may have stopped half way
      throw;
    }
  });
}

/// Calls `function` with the run, one call at a time.
template <typename Function>
int WithRun(penstock_run* run, Function function) {
  return Guard([&]() -> Status {
    if (run == nullptr) return Missing("the run");
    PENSTOCK_TRY(CheckProcess("run", run->shared->process));
    const std::lock_guard lock(run->shared->mutex);
    if (run->shared->run == nullptr) {
      return MakeError(ErrorCode::kUnavailable, "the run was closed, because the process ends");
    }
    return function(*run->shared->run);
  });
}

}  // namespace penstock::front
