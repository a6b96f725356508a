// Writes the safetensors format (train/weights/safetensors.h) in pieces: no tensor is ever whole in
// memory.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/result.h"
#include "kernels/dtype.h"

namespace penstock::train {

/// Writes one file under a temporary name in the same folder; Finish syncs and renames it. Without
/// Finish nothing is left behind. Threads: one.
class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    std::vector<uint64_t> shape;
  };
  /// All tensors of the file are declared up front, with the one dtype they are stored in. Reserves
  /// the file's space. Errors: kNotFound, kPermission, kOutOfSpace.
  static Result<SafetensorsWriter> Create(const std::string& path, kernels::DType dtype,
                                          const std::vector<Tensor>& tensors,
                                          IfExists if_exists = IfExists::kReplace);
  /// Appends the next elements, tensor after tensor in declared order; rounds to nearest even.
  /// Precondition: no more than were declared.
  Status Append(std::span<const float> values);
  /// Precondition: all elements were appended.
  Status Finish() { return file_->Finish(); }

 private:
  SafetensorsWriter(std::unique_ptr<OutputFile> file, kernels::DType dtype)
      : file_(std::move(file)), dtype_(dtype) {}

  std::unique_ptr<OutputFile> file_;
  kernels::DType dtype_;
};

}  // namespace penstock::train
