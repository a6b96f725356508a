// The JSON header of a safetensors file: checked in full before a tensor is touched.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "train/weights/safetensors.h"
#include "train/weights/safetensors_writer.h"

namespace penstock::train {

/// The limit of the reference implementation.
inline constexpr Bytes kSafetensorsHeaderLimit{100'000'000};
/// The header's length comes first, as 8 bytes little-endian.
inline constexpr Bytes kSafetensorsLengthBytes{8};

/// "F32", "BF16", "F16": the format's names.
const char* SafetensorsName(DType dtype);

/// Reads the header `text` of the file `path`, whose data are the `data_bytes` after `data_begin`.
/// The tensors must fill the data without gap or overlap, as in the reference implementation.
/// Errors: kCorruption, naming path and tensor.
Result<std::map<std::string, SafetensorsEntry>> ParseSafetensorsHeader(std::string_view text,
                                                                       const std::string& path,
                                                                       FileOffset data_begin,
                                                                       Bytes data_bytes);

/// Returns length field and header for `tensors`, which lie one after the other in the data; padded
/// with spaces so that the data start at a multiple of 8.
std::string MakeSafetensorsHeader(DType dtype,
                                  const std::vector<SafetensorsWriter::Tensor>& tensors);

/// Computes the number of elements. Returns false if it overflows 64 bits.
bool CountElements(const std::vector<uint64_t>& shape, uint64_t* elements);

}  // namespace penstock::train
