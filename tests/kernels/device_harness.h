// What the tests of work on a device share: a device with one stream, tensors that are written and
// read as doubles, and comparison with stated tolerances.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "kernels/dtype.h"
#include "tests/kernels/tested_device.h"

namespace penstock::kernels {

using Values = std::vector<double>;

/// fp32 results: rounding of sums of a few hundred terms.
inline constexpr double kFloatTolerance = 1e-5;
/// bf16 results: half a unit in the last place is up to 2^-8 of the value.
inline constexpr double kBFloat16Tolerance = 1.0 / 256;
/// fp16 results: half a unit in the last place is up to 2^-11 of the value.
inline constexpr double kFloat16Tolerance = 1.0 / 2048;

inline double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return kFloatTolerance;
    case DType::kBFloat16:
      return kBFloat16Tolerance;
    case DType::kFloat16:
      return kFloat16Tolerance;
  }
  return 0;
}

/// Half the distance of the smallest values that the dtype has, where tests come down to them: no
/// result is nearer.
inline double HalfSpacing(DType dtype) { return dtype == DType::kFloat16 ? 0x1p-25 : 0; }

/// The bits of a value in one of the 16-bit dtypes, and the value of such bits.
inline uint16_t HalfBits(DType dtype, float value) {
  return dtype == DType::kFloat16 ? RoundToFloat16(value) : RoundToBFloat16(value).bits;
}
inline float OfHalfBits(DType dtype, uint16_t bits) {
  return dtype == DType::kFloat16 ? ToFloat(Float16{bits}) : ToFloat(BFloat16{bits});
}

inline double RoundTo(DType dtype, double value) {
  const auto single = static_cast<float>(value);
  return dtype == DType::kFloat32 ? single : OfHalfBits(dtype, HalfBits(dtype, single));
}

/// 64 bits that belong to (stream, i): splitmix64, which is fast enough for large operands.
inline uint64_t RandomBits(uint64_t stream, uint64_t i) {
  uint64_t z = (i + 1) * 0x9e3779b97f4a7c15 + stream * 0xd1342543de82ef95;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

/// n values of mean 0 and variance 1 (sums of four uniform deviates) times `scale`, as the dtype
/// holds them.
inline Values RandomValues(DType dtype, uint64_t n, uint64_t stream, double scale = 1) {
  Values values(n);
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t bits = RandomBits(stream, i);
    double sum = 0;
    for (int part = 0; part < 4; ++part) {
      sum += static_cast<double>(bits >> (16 * part) & 0xffff) / 65536 - 0.5;
    }
    values[i] = RoundTo(dtype, scale * std::sqrt(3.0) * sum);
  }
  return values;
}

/// Every value is within tolerance · (its magnitude + the root mean square of all).
inline void ExpectClose(const Values& got, const Values& want, double tolerance,
                        const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double squares = 0;
  for (const double value : want) squares += value * value;
  const double typical = std::sqrt(squares / static_cast<double>(want.size()));
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_LE(std::abs(got[i] - want[i]), tolerance * (std::abs(want[i]) + typical))
        << what << " [" << i << "]: got " << got[i] << ", want " << want[i];
  }
}

/// Every value is within tolerance · magnitude: the sum of the absolute values of the terms that
/// the value is the sum of, where these terms are rounded themselves. Terms, and so the value, may
/// be off by `spacing` beside that.
inline void ExpectWithin(const Values& got, const Values& want, const Values& magnitude,
                         double tolerance, double spacing, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_LE(std::abs(got[i] - want[i]), tolerance * magnitude[i] + spacing)
        << what << " [" << i << "]: got " << got[i] << ", want " << want[i];
  }
}

/// The gradient of f at x in some directions, by central differences of fourth order in double:
/// about 20 elements spread over x are compared with `gradient`.
inline void ExpectGradientOf(const std::function<double(const Values&)>& f, const Values& x,
                             const Values& gradient, const std::string& what) {
  ASSERT_EQ(x.size(), gradient.size());
  constexpr double kStep = 1e-3;
  const size_t stride = std::max<size_t>(1, x.size() / 19);
  for (size_t i = 0; i < x.size(); i += stride) {
    const auto at = [&](double step) {
      Values moved = x;
      moved[i] += step;
      return f(moved);
    };
    const double slope =
        (8 * (at(kStep) - at(-kStep)) - (at(2 * kStep) - at(-2 * kStep))) / (12 * kStep);
    EXPECT_NEAR(gradient[i], slope, 1e-8 * (1 + std::abs(slope))) << what << " [" << i << "]";
  }
}

inline double Dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// What follows each tensor: NaN of every dtype.
inline constexpr Bytes kGuard = 256_B;
inline constexpr std::byte kGuardByte{0xff};

/// Device memory that holds elements of a dtype.
struct Tensor {
  DType dtype;
  uint64_t size;
  device::DeviceBuffer buffer;

  std::byte* data() const { return buffer.data(); }
  float* floats() const { return buffer.as<float>(); }
};

/// A device and a stream.
class DeviceHarness {
 public:
  explicit DeviceHarness(Bytes memory = 256_MiB)
      : device_(CreateTestedDevice(memory).value()),
        stream_(device_->CreateStream("compute").value()) {}

  device::Stream& stream() { return *stream_; }
  device::Device& device() { return *device_; }

  /// NaN, as is what lies behind it: code that reads either before it is written computes NaN.
  Tensor Empty(DType dtype, uint64_t n) {
    const Bytes size = n * SizeOf(dtype) + kGuard;
    Tensor tensor{dtype, n, device_->Allocate(size, "a tensor of the test").value()};
    const std::vector<std::byte> nan(size.value, kGuardByte);
    stream_->CopyToDevice(tensor.data(), nan.data(), size);
    Synchronize();
    return tensor;
  }
  Tensor Zeros(DType dtype, uint64_t n) { return Put(dtype, Values(n, 0.0)); }

  Tensor Put(DType dtype, const Values& values) {
    Tensor tensor = Empty(dtype, values.size());
    Set(tensor, values);
    return tensor;
  }
  void Set(const Tensor& tensor, const Values& values) {
    std::vector<float> floats(values.begin(), values.end());
    std::vector<uint16_t> halves;
    for (const float value : floats) halves.push_back(HalfBits(tensor.dtype, value));
    const void* host = tensor.dtype == DType::kFloat32 ? static_cast<const void*>(floats.data())
                                                       : static_cast<const void*>(halves.data());
    stream_->CopyToDevice(tensor.data(), static_cast<const std::byte*>(host),
                          tensor.size * SizeOf(tensor.dtype));
    Synchronize();
  }

  /// A copy of host elements, whatever they are.
  template <typename T>
  device::DeviceBuffer PutElements(std::span<const T> elements) {
    const Bytes size{elements.size_bytes()};
    auto buffer = device_->Allocate(size, "elements of the test").value();
    stream_->CopyToDevice(buffer.data(), reinterpret_cast<const std::byte*>(elements.data()), size);
    Synchronize();
    return buffer;
  }
  device::DeviceBuffer PutIntegers(const std::vector<int32_t>& values) {
    return PutElements<int32_t>(values);
  }
  device::DeviceBuffer PutDouble(double value) { return PutElements<double>({&value, 1}); }

  /// What lies on the device from `from` on.
  template <typename T>
  std::vector<T> GetElements(const void* from, size_t count) {
    std::vector<T> elements(count);
    stream_->CopyToHost(reinterpret_cast<std::byte*>(elements.data()),
                        static_cast<const std::byte*>(from), Bytes{count * sizeof(T)});
    Synchronize();
    return elements;
  }
  double GetDouble(const device::DeviceBuffer& buffer) {
    return GetElements<double>(buffer.data(), 1).front();
  }
  /// Nothing may have been written behind the tensor.
  std::vector<std::byte> GetBytes(const Tensor& tensor) {
    const size_t size = (tensor.size * SizeOf(tensor.dtype)).value;
    auto bytes = GetElements<std::byte>(tensor.data(), size + kGuard.value);
    EXPECT_TRUE(std::all_of(bytes.begin() + static_cast<ptrdiff_t>(size), bytes.end(),
                            [](std::byte byte) { return byte == kGuardByte; }));
    bytes.resize(size);
    return bytes;
  }
  Values Get(const Tensor& tensor) {
    const std::vector<std::byte> bytes = GetBytes(tensor);
    Values values(tensor.size);
    for (uint64_t i = 0; i < tensor.size; ++i) {
      if (tensor.dtype == DType::kFloat32) {
        float value;
        std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
        values[i] = value;
      } else {
        uint16_t half;
        std::memcpy(&half, bytes.data() + i * sizeof(half), sizeof(half));
        values[i] = OfHalfBits(tensor.dtype, half);
      }
    }
    return values;
  }

  void Synchronize() {
    const Status status = stream_->Synchronize();
    PENSTOCK_CHECK(status.ok(), "{}", status.error().message);
  }

 private:
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
};

}  // namespace penstock::kernels
