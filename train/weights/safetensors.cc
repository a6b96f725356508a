#include "train/weights/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>

#include "train/weights/safetensors_header.h"

namespace penstock::train {
namespace {

static_assert(std::endian::native == std::endian::little,
              "tensors are read as they lie in the file");

constexpr size_t kReadElements = size_t{32} << 10;

Result<uint64_t> ReadHeaderLength(const InputFile& file) {
  const Bytes rest = file.size() - std::min(file.size(), kSafetensorsLengthBytes);
  if (file.size() < kSafetensorsLengthBytes) {
    return MakeError(ErrorCode::kCorruption,
                     "{} is not a valid safetensors file: it has {} bytes, fewer than the 8 of its "
                     "header's length",
                     file.path(), file.size().value);
  }
  std::array<std::byte, 8> bytes;
  PENSTOCK_TRY(file.Read(FileOffset{0}, bytes));
  const auto length = std::bit_cast<uint64_t>(bytes);
  if (length > kSafetensorsHeaderLimit.value) {
    return MakeError(ErrorCode::kCorruption,
                     "{} is not a valid safetensors file: its header of {} bytes is above the "
                     "format's limit of {}",
                     file.path(), length, kSafetensorsHeaderLimit.value);
  }
  if (length > rest.value) {
    return MakeError(ErrorCode::kCorruption,
                     "{} is not a valid safetensors file: its header of {} bytes ends beyond the "
                     "file's {}; the file is cut off or something else",
                     file.path(), length, file.size().value);
  }
  return length;
}

/// Reads 16-bit elements through a bounded buffer.
template <typename Convert>
Status ReadHalves(const InputFile& file, FileOffset offset, std::span<float> values,
                  Convert convert) {
  std::vector<uint16_t> buffer(std::min(values.size(), kReadElements));
  while (!values.empty()) {
    const auto chunk = std::span(buffer).first(std::min(values.size(), buffer.size()));
    PENSTOCK_TRY(file.Read(offset, std::as_writable_bytes(chunk)));
    std::transform(chunk.begin(), chunk.end(), values.begin(), convert);
    offset = offset + Bytes{chunk.size_bytes()};
    values = values.subspan(chunk.size());
  }
  return {};
}

}  // namespace

Result<SafetensorsReader> SafetensorsReader::Open(const std::string& path) {
  PENSTOCK_ASSIGN(InputFile file, InputFile::Open(path));
  PENSTOCK_ASSIGN(const uint64_t length, ReadHeaderLength(file));
  std::string text(length, '\0');
  PENSTOCK_TRY(file.Read(FileOffset{kSafetensorsLengthBytes.value},
                         std::as_writable_bytes(std::span(text))));
  const Bytes data_begin = kSafetensorsLengthBytes + Bytes{length};
  PENSTOCK_ASSIGN(auto entries, ParseSafetensorsHeader(text, path, FileOffset{data_begin.value},
                                                       file.size() - data_begin));
  return SafetensorsReader(std::move(file), std::move(entries));
}

Status SafetensorsReader::Read(const std::string& name, uint64_t begin,
                               std::span<float> values) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return MakeError(ErrorCode::kInvalidArgument, "{} has no tensor {}", path(), name);
  }
  const SafetensorsEntry& entry = found->second;
  if (!entry.dtype) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "tensor {} of {} is stored as {}; only F32, BF16 and F16 are read", name,
                     path(), entry.stored);
  }
  PENSTOCK_CHECK(begin <= entry.elements && values.size() <= entry.elements - begin,
                 "elements {} + {} of tensor {}", begin, values.size(), name);
  const FileOffset offset = FileOffset{entry.file_offset} + SizeOf(*entry.dtype) * begin;
  switch (*entry.dtype) {
    case DType::kFloat32:
      return file_.Read(offset, std::as_writable_bytes(values));
    case DType::kBFloat16:
      return ReadHalves(file_, offset, values,
                        [](uint16_t bits) { return kernels::ToFloat(kernels::BFloat16{bits}); });
    case DType::kFloat16:
      return ReadHalves(file_, offset, values, kernels::Float16ToFloat);
  }
  PENSTOCK_CHECK(false, "dtype {}", static_cast<int>(*entry.dtype));
}

}  // namespace penstock::train
