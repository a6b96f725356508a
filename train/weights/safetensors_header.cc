#include "train/weights/safetensors_header.h"

#include <algorithm>
#include <array>

#include "base/strict_json.h"

namespace penstock::train {
namespace {

using nlohmann::json;
using Entries = std::map<std::string, SafetensorsEntry>;

constexpr char kMetadata[] = "__metadata__";

/// What the format knows; a dtype that is not here is a later addition, whose size we cannot check.
struct StoredType {
  std::string_view name;
  uint64_t bytes;
};
constexpr std::array<StoredType, 16> kStoredTypes = {{{"F32", 4},
                                                      {"BF16", 2},
                                                      {"F16", 2},
                                                      {"F64", 8},
                                                      {"I64", 8},
                                                      {"I32", 4},
                                                      {"I16", 2},
                                                      {"I8", 1},
                                                      {"U64", 8},
                                                      {"U32", 4},
                                                      {"U16", 2},
                                                      {"U8", 1},
                                                      {"BOOL", 1},
                                                      {"F8_E4M3", 1},
                                                      {"F8_E5M2", 1},
                                                      {"C64", 8}}};

struct Extent {
  uint64_t begin;  ///< in the data
  uint64_t end;
  const std::string* name;
};

std::optional<DType> ReadableType(std::string_view name) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (name == SafetensorsName(dtype)) return dtype;
  }
  return std::nullopt;
}

template <typename... Args>
Error Corrupt(const std::string& path, fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(ErrorCode::kCorruption, "{} is not a valid safetensors file: {}", path,
                   fmt::format(format, std::forward<Args>(args)...));
}

/// An array of `count` unsigned integers; of any number if `count` is 0.
std::optional<std::vector<uint64_t>> ReadNumbers(const json& tensor, const char* key,
                                                 size_t count) {
  const auto found = tensor.find(key);
  if (found == tensor.end() || !found->is_array()) return std::nullopt;
  if (count != 0 && found->size() != count) return std::nullopt;
  std::vector<uint64_t> numbers;
  for (const json& number : *found) {
    if (!number.is_number_unsigned()) return std::nullopt;
    numbers.push_back(number.get<uint64_t>());
  }
  return numbers;
}

/// One tensor of the header; `file_offset` is relative to the data. Sets `*end` likewise.
Result<SafetensorsEntry> ReadEntry(const std::string& path, const std::string& name,
                                   const json& tensor, uint64_t* end) {
  if (!tensor.is_object()) return Corrupt(path, "tensor {} is not a JSON object", name);
  const auto dtype = tensor.find("dtype");
  if (dtype == tensor.end() || !dtype->is_string()) {
    return Corrupt(path, "tensor {} has no \"dtype\" that is a string", name);
  }
  const auto shape = ReadNumbers(tensor, "shape", 0);
  if (!shape) return Corrupt(path, "tensor {} has no \"shape\" of whole numbers", name);
  const auto offsets = ReadNumbers(tensor, "data_offsets", 2);
  if (!offsets || (*offsets)[0] > (*offsets)[1]) {
    return Corrupt(path, "tensor {} has no \"data_offsets\" of two ascending numbers", name);
  }
  SafetensorsEntry entry;
  entry.stored = dtype->get<std::string>();
  entry.dtype = ReadableType(entry.stored);
  entry.shape = *shape;
  entry.file_offset = (*offsets)[0];
  *end = (*offsets)[1];
  if (!CountElements(entry.shape, &entry.elements)) {
    return Corrupt(path, "the shape of tensor {} has more than 2^64 elements", name);
  }
  return entry;
}

/// That the bytes of a tensor are as many as its shape and dtype ask for.
Status CheckSize(const std::string& path, const std::string& name, const SafetensorsEntry& entry,
                 uint64_t bytes) {
  for (const StoredType& type : kStoredTypes) {
    if (type.name != entry.stored) continue;
    if (bytes % type.bytes == 0 && bytes / type.bytes == entry.elements) return {};
    return Corrupt(path, "tensor {} has {} bytes of data for {} elements of {}", name, bytes,
                   entry.elements, entry.stored);
  }
  return {};
}

/// That the tensors fill the data exactly.
Status CheckExtents(const std::string& path, std::vector<Extent> extents, uint64_t data_bytes) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t at = 0;
  for (const Extent& extent : extents) {
    if (extent.end > data_bytes) {
      return Corrupt(
          path,
          "tensor {} ends at byte {} of the data, of which there are {}; the file is cut off "
          "or its header is wrong",
          *extent.name, extent.end, data_bytes);
    }
    if (extent.begin != at) {
      return Corrupt(path, "tensor {} begins at byte {} of the data and {} byte {}", *extent.name,
                     extent.begin,
                     extent.begin < at ? "overlaps what ends at" : "leaves a gap after", at);
    }
    at = extent.end;
  }
  if (at != data_bytes) {
    return Corrupt(path, "its tensors end at byte {} of the data and {} bytes follow", at,
                   data_bytes - at);
  }
  return {};
}

Status CheckMetadata(const std::string& path, const json& metadata) {
  if (!metadata.is_object()) return Corrupt(path, "\"{}\" is not a JSON object", kMetadata);
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) {
      return Corrupt(path, "\"{}.{}\" is not a string", kMetadata, key);
    }
  }
  return {};
}

}  // namespace

const char* SafetensorsName(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "F32";
    case DType::kBFloat16:
      return "BF16";
    case DType::kFloat16:
      return "F16";
  }
  return "?";
}

bool CountElements(const std::vector<uint64_t>& shape, uint64_t* elements) {
  *elements = 1;
  for (const uint64_t extent : shape) {
    if (__builtin_mul_overflow(*elements, extent, elements)) return false;
  }
  return true;
}

Result<Entries> ParseSafetensorsHeader(std::string_view text, const std::string& path,
                                       FileOffset data_begin, Bytes data_bytes) {
  PENSTOCK_ASSIGN(const json header,
                  ParseJsonObject(text, fmt::format("the header of safetensors file {}", path),
                                  ErrorCode::kCorruption));
  Entries entries;
  std::vector<Extent> extents;
  for (const auto& [name, tensor] : header.items()) {
    if (name == kMetadata) {
      PENSTOCK_TRY(CheckMetadata(path, tensor));
      continue;
    }
    uint64_t end = 0;
    PENSTOCK_ASSIGN(SafetensorsEntry entry, ReadEntry(path, name, tensor, &end));
    PENSTOCK_TRY(CheckSize(path, name, entry, end - entry.file_offset));
    const auto [at, inserted] = entries.emplace(name, std::move(entry));
    extents.push_back({at->second.file_offset, end, &at->first});
  }
  PENSTOCK_TRY(CheckExtents(path, std::move(extents), data_bytes.value));
  for (auto& [name, entry] : entries) entry.file_offset += data_begin.value;
  return entries;
}

std::string MakeSafetensorsHeader(DType dtype,
                                  const std::vector<SafetensorsWriter::Tensor>& tensors) {
  nlohmann::ordered_json header;
  // Hugging Face's loader refuses a file that does not say which framework's names it uses.
  header[kMetadata] = {{"format", "pt"}};
  uint64_t at = 0;
  for (const SafetensorsWriter::Tensor& tensor : tensors) {
    uint64_t elements = 0;
    PENSTOCK_CHECK(CountElements(tensor.shape, &elements) && !header.contains(tensor.name));
    const uint64_t end = at + (SizeOf(dtype) * elements).value;
    header[tensor.name] = {
        {"dtype", SafetensorsName(dtype)}, {"shape", tensor.shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.resize(AlignUp(Bytes{text.size()}, 8_B).value, ' ');
  std::string length(kSafetensorsLengthBytes.value, '\0');
  for (size_t i = 0; i < length.size(); ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  return length + text;
}

}  // namespace penstock::train
