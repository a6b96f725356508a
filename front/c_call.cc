#include "front/c_call.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "base/message_text.h"

namespace penstock::front {
namespace {

thread_local std::string last_error;

}  // namespace

int CodeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return PENSTOCK_INVALID_ARGUMENT;
    case ErrorCode::kBudget:
      return PENSTOCK_BUDGET;
    case ErrorCode::kNotFound:
      return PENSTOCK_NOT_FOUND;
    case ErrorCode::kPermission:
      return PENSTOCK_PERMISSION;
    case ErrorCode::kOutOfSpace:
      return PENSTOCK_OUT_OF_SPACE;
    case ErrorCode::kOutOfMemory:
      return PENSTOCK_OUT_OF_MEMORY;
    case ErrorCode::kIo:
      return PENSTOCK_IO;
    case ErrorCode::kUnavailable:
      return PENSTOCK_UNAVAILABLE;
    case ErrorCode::kCorruption:
      return PENSTOCK_CORRUPTION;
    case ErrorCode::kNumeric:
      return PENSTOCK_NUMERIC;
    case ErrorCode::kCancelled:
      return PENSTOCK_CANCELLED;
  }
  return PENSTOCK_INTERNAL;
}

int Fail(int code, std::string_view message) {
  try {
    last_error = MessageLine(message);
  } catch (const std::bad_alloc&) {
    return code;
  }
  return code;
}

const char* LastError() { return last_error.c_str(); }

Status Missing(const char* what) {
  return MakeError(ErrorCode::kInvalidArgument, "{} is NULL", what);
}

Status GiveText(const std::string& text, char** out) {
  if (out == nullptr) return Missing("the place of the text");
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return MakeError(ErrorCode::kOutOfMemory, "the host has no memory left");
  std::memcpy(copy, text.c_str(), text.size() + 1);
  *out = copy;
  return {};
}

Status CheckProcess(const char* what, pid_t process) {
  if (process == ::getpid()) return {};
  return MakeError(ErrorCode::kUnavailable,
                   "the {} belongs to process {}, and this is process {}, a fork of it; use it "
                   "there, or make another one here",
                   what, process, ::getpid());
}

}  // namespace penstock::front
