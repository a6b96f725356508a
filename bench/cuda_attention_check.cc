#include "bench/cuda_attention_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/check.h"

namespace penstock::bench {
namespace {

using kernels::AttentionCall;
using kernels::AttentionKernel;
using kernels::BFloat16;
using kernels::DType;
using kernels::TensorView;

/// Converts to bytes of the dtype, and back.
std::vector<std::byte> ToBytes(DType dtype, std::span<const uint16_t> values) {
  std::vector<std::byte> bytes(values.size() * SizeOf(dtype).value);
  if (dtype == DType::kBFloat16) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  auto* const floats = reinterpret_cast<float*>(bytes.data());
  std::ranges::transform(values, floats, [](uint16_t bits) { return ToFloat(BFloat16{bits}); });
  return bytes;
}
std::vector<float> FromBytes(DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<float> floats(bytes.size() / SizeOf(dtype).value);
  if (dtype == DType::kFloat32) {
    std::memcpy(floats.data(), bytes.data(), bytes.size());
    return floats;
  }
  const auto* const halves = reinterpret_cast<const uint16_t*>(bytes.data());
  std::transform(halves, halves + floats.size(), floats.begin(),
                 [](uint16_t bits) { return ToFloat(BFloat16{bits}); });
  return floats;
}

struct Attended {
  std::vector<float> out;    ///< [rows, width]
  std::vector<float> d_qkv;  ///< [rows, 3 width]
};

Result<Attended> Attend(device::Device& device, const AttentionCall& call, AttentionKernel kernel,
                        std::span<const uint16_t> random) {
  PENSTOCK_ASSIGN(const auto operators,
                  kernels::CreateModelOperators(device, {.calls = {call}, .attention = kernel}));
  PENSTOCK_ASSIGN(const auto stream, device.CreateStream("compute"));
  const uint64_t n = call.batch * call.sequence * call.width;
  const Bytes size = n * SizeOf(call.dtype);
  PENSTOCK_ASSIGN(const auto inputs, device.Allocate(4 * size, "inputs of attention"));
  PENSTOCK_ASSIGN(const auto results, device.Allocate(4 * size, "results of attention"));
  const auto bytes = ToBytes(call.dtype, random.first(4 * n));
  stream->CopyToDevice(inputs.data(), bytes.data(), 4 * size);
  const auto view = [&](uint64_t parts, std::byte* data) {
    return TensorView{call.dtype, {call.batch, call.sequence, parts * call.width}, data};
  };
  const TensorView qkv = view(3, inputs.data());
  const TensorView d_out = view(1, inputs.data() + (3 * size).value);
  const TensorView out = view(1, results.data());
  const TensorView d_qkv = view(3, results.data() + size.value);
  operators->AttentionForward(*stream, call.heads, qkv, out);
  operators->AttentionBackward(*stream, call.heads, qkv, out, d_out, d_qkv);
  std::vector<std::byte> of_out(size.value);
  std::vector<std::byte> of_d_qkv(3 * size.value);
  stream->CopyToHost(of_out.data(), out.data, size);
  stream->CopyToHost(of_d_qkv.data(), d_qkv.data, 3 * size);
  PENSTOCK_TRY(stream->Synchronize());
  return Attended{FromBytes(call.dtype, of_out), FromBytes(call.dtype, of_d_qkv)};
}

/// One of `parts` matrices whose rows lie one behind the other.
struct Part {
  const std::vector<float>& values;
  uint64_t parts;
  uint64_t part;

  std::span<const float> Head(const AttentionCall& call, uint64_t row, uint64_t head) const {
    const uint64_t size = call.width / call.heads;
    return std::span(values).subspan((row * parts + part) * call.width + head * size, size);
  }
};

double SquaresOf(std::span<const float> values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return squares;
}

AttentionError Compare(const AttentionCall& call, const Part& got, const Part& want) {
  const uint64_t rows = call.batch * call.sequence;
  const auto for_each_head = [&](const auto& work) {
    for (uint64_t row = 0; row < rows; ++row) {
      for (uint64_t head = 0; head < call.heads; ++head) {
        work(got.Head(call, row, head), want.Head(call, row, head));
      }
    }
  };
  double squares = 0;
  for_each_head([&](auto, auto reference) { squares += SquaresOf(reference); });
  const double all = std::sqrt(squares / static_cast<double>(rows * call.width));
  AttentionError error;
  double off = 0;
  for_each_head([&](auto result, auto reference) {
    const double row = std::sqrt(SquaresOf(reference) / static_cast<double>(reference.size()));
    for (size_t i = 0; i < reference.size(); ++i) {
      const double distance = std::abs(double{result[i]} - double{reference[i]});
      off += distance * distance;
      const double relative = distance / (std::abs(double{reference[i]}) + row + all);
      // NaN is far.
      error.largest = std::max(error.largest, relative >= 0 ? relative : INFINITY);
    }
  });
  error.typical = std::sqrt(off / squares);
  if (std::isnan(error.typical)) error.typical = INFINITY;
  return error;
}

std::string ToString(const AttentionError& error) {
  return fmt::format("{:.4f}, at most {:.4f}", error.typical, error.largest);
}

}  // namespace

std::string AttentionErrors::Describe() const {
  return fmt::format("output {}; gradients of queries {}; of keys {}; of values {}", ToString(out),
                     ToString(d_query), ToString(d_key), ToString(d_value));
}

AttentionError AttentionErrors::Worst() const {
  AttentionError worst;
  for (const AttentionError* error : {&out, &d_query, &d_key, &d_value}) {
    worst.typical = std::max(worst.typical, error->typical);
    worst.largest = std::max(worst.largest, error->largest);
  }
  return worst;
}

Result<AttentionErrors> CheckAttention(device::Device& device, const AttentionCall& call,
                                       AttentionKernel kernel, std::span<const uint16_t> random) {
  PENSTOCK_CHECK(call.dtype == DType::kBFloat16);
  AttentionCall in_floats = call;
  in_floats.dtype = DType::kFloat32;
  PENSTOCK_ASSIGN(const Attended got, Attend(device, call, kernel, random));
  PENSTOCK_ASSIGN(const Attended want, Attend(device, in_floats, AttentionKernel::kOwn, random));
  const auto gradient = [&](uint64_t part) {
    return Compare(call, {got.d_qkv, 3, part}, {want.d_qkv, 3, part});
  };
  return AttentionErrors{.out = Compare(call, {got.out, 1, 0}, {want.out, 1, 0}),
                         .d_query = gradient(0),
                         .d_key = gradient(1),
                         .d_value = gradient(2)};
}

}  // namespace penstock::bench
