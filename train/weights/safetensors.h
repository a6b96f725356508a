// Reads the safetensors format in pieces: no tensor is ever whole in memory.
//
// File: 8 bytes little-endian header length, a JSON header {name: {dtype, shape, data_offsets}},
// then the raw little-endian data. Reference: the format section of huggingface/safetensors'
// README.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/result.h"
#include "kernels/dtype.h"

namespace penstock::train {

struct SafetensorsEntry {
  std::string stored;                   ///< the dtype as the header names it
  std::optional<kernels::DType> dtype;  ///< unset: a dtype that cannot be read
  std::vector<uint64_t> shape;
  uint64_t file_offset = 0;  ///< of the first byte, from the start of the file; any alignment
  uint64_t elements = 0;
};

/// One file, open for reading. Threads: any number may read.
class SafetensorsReader {
 public:
  /// Checks the whole header: lengths, overlaps, bounds against the file's size (a truncated file
  /// is found here). dtypes: F32, BF16, F16; others are refused when they are read. Errors: those
  /// of InputFile; kCorruption (never half-accepted), naming path and tensor.
  static Result<SafetensorsReader> Open(const std::string& path);

  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const std::string& path() const { return file_.path(); }
  /// Elements [begin, begin + values.size()) of a tensor as fp32 (bf16 and fp16 convert exactly).
  /// Precondition: the tensor has them. Errors: kInvalidArgument (no such tensor, dtype), kIo.
  Status Read(const std::string& name, uint64_t begin, std::span<float> values) const;

 private:
  SafetensorsReader(InputFile file, std::map<std::string, SafetensorsEntry> entries)
      : file_(std::move(file)), entries_(std::move(entries)) {}

  InputFile file_;
  std::map<std::string, SafetensorsEntry> entries_;
};

}  // namespace penstock::train
