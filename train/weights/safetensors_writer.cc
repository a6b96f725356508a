#include "train/weights/safetensors_writer.h"

#include <algorithm>
#include <bit>

#include "train/weights/safetensors_header.h"

namespace penstock::train {
namespace {

static_assert(std::endian::native == std::endian::little,
              "elements are written as they lie in memory");

constexpr size_t kWriteElements = size_t{256} << 10;

uint16_t RoundToBits(float value) { return kernels::RoundToBFloat16(value).bits; }

}  // namespace

Result<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path, DType dtype,
                                                    const std::vector<Tensor>& tensors,
                                                    IfExists if_exists) {
  const std::string header = MakeSafetensorsHeader(dtype, tensors);
  Bytes size{header.size()};
  for (const Tensor& tensor : tensors) {
    uint64_t elements = 0;
    PENSTOCK_CHECK(CountElements(tensor.shape, &elements));
    size += SizeOf(dtype) * elements;
  }
  PENSTOCK_ASSIGN(std::unique_ptr<OutputFile> file, OutputFile::Create(path, size, if_exists));
  PENSTOCK_TRY(file->Append(std::as_bytes(std::span(header))));
  return SafetensorsWriter(std::move(file), dtype);
}

Status SafetensorsWriter::Append(std::span<const float> values) {
  if (dtype_ == DType::kFloat32) return file_->Append(std::as_bytes(values));
  std::vector<uint16_t> buffer(std::min(values.size(), kWriteElements));
  while (!values.empty()) {
    const auto chunk = values.first(std::min(values.size(), buffer.size()));
    const auto halves = std::span(buffer).first(chunk.size());
    std::transform(chunk.begin(), chunk.end(), halves.begin(),
                   dtype_ == DType::kBFloat16 ? RoundToBits : kernels::RoundToFloat16);
    PENSTOCK_TRY(file_->Append(std::as_bytes(halves)));
    values = values.subspan(chunk.size());
  }
  return {};
}

}  // namespace penstock::train
