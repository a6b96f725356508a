// A library that is loaded at its first use, because not every machine has it.
//
// Threads: any.
#pragma once

#include <string>
#include <utility>

#include "base/result.h"

namespace penstock {

/// Stays loaded until the process ends. A plain value.
class SharedLibrary {
 public:
  /// Loads the library of this soname. `need` and `advice`: what needs it, and what to do without
  /// it, for the message. Errors: kUnavailable.
  static Result<SharedLibrary> Load(const std::string& soname, const std::string& need,
                                    const std::string& advice);

  /// Sets `function` to the one of this name. Errors: kUnavailable if the library has none, with
  /// `advice`.
  template <typename Function>
  Status Find(const char* name, const std::string& advice, Function& function) const {
    function = reinterpret_cast<Function>(Address(name));
    if (function != nullptr) return {};
    return MakeError(ErrorCode::kUnavailable, "{} has no {}; {}", soname_, name, advice);
  }

  /// Returns the result of dlopen, for code that looks up functions itself.
  void* handle() const { return handle_; }

 private:
  SharedLibrary(std::string soname, void* handle) : soname_(std::move(soname)), handle_(handle) {}
  /// Null if there is none.
  void* Address(const char* name) const;

  std::string soname_;
  void* handle_;
};

}  // namespace penstock
