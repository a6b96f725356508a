// Turns the result of a CUDA call into a Status that names the operation.
//
// Needs no CUDA headers: a cudaError_t converts to the int. Exists in builds with CUDA only.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "base/result.h"

namespace penstock::device {

/// "cuda: <doing>: <CUDA's text> (<CUDA's name>)"; kOutOfMemory if memory could not be had, else
/// kUnavailable.
Error CudaError(int error, const std::string& doing);

/// Success for cudaSuccess. The text is made of `doing` only in case of a failure.
template <typename... Args>
Status CudaStatus(int error, fmt::format_string<Args...> doing, Args&&... args) {
  if (error == 0) [[likely]] {
    return {};
  }
  return CudaError(error, fmt::format(doing, std::forward<Args>(args)...));
}

}  // namespace penstock::device
