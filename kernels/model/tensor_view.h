// Tensors as the operators of a model see them: a dtype, sizes and an address. They own nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "base/check.h"
#include "kernels/dtype.h"

namespace penstock::kernels {

/// The sizes of a tensor, outermost first; elements are row-major, without gaps.
class Shape {
 public:
  static constexpr size_t kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<uint64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}
  explicit Shape(std::span<const uint64_t> sizes) : rank_(sizes.size()) {
    PENSTOCK_CHECK(rank_ > 0 && rank_ <= kMaxRank, "a tensor of {} sizes", rank_);
    for (size_t i = 0; i < rank_; ++i) sizes_[i] = sizes[i];
  }

  size_t rank() const { return rank_; }
  uint64_t operator[](size_t i) const {
    PENSTOCK_CHECK(i < rank_);
    return sizes_[i];
  }
  uint64_t elements() const { return rank_ == 0 ? 0 : rows() * columns(); }
  /// The shape as a matrix: the last size, and the product of those before it.
  uint64_t columns() const { return (*this)[rank_ - 1]; }
  uint64_t rows() const {
    uint64_t rows = 1;
    for (size_t i = 0; i + 1 < rank_; ++i) rows *= sizes_[i];
    return rows;
  }

  bool operator==(const Shape&) const = default;

 private:
  std::array<uint64_t, kMaxRank> sizes_{};
  size_t rank_ = 0;
};

struct ConstTensorView {
  DType dtype = DType::kFloat32;
  Shape shape;
  const std::byte* data = nullptr;

  const float* floats() const {
    PENSTOCK_CHECK(dtype == DType::kFloat32);
    return reinterpret_cast<const float*>(data);
  }
};

struct TensorView {
  DType dtype = DType::kFloat32;
  Shape shape;
  std::byte* data = nullptr;

  float* floats() const {
    PENSTOCK_CHECK(dtype == DType::kFloat32);
    return reinterpret_cast<float*>(data);
  }
  // NOLINTNEXTLINE(google-explicit-constructor): what may be written may be read
  operator ConstTensorView() const { return {.dtype = dtype, .shape = shape, .data = data}; }
};

/// An integer for each token of a micro-batch: the token itself, or the one that follows it.
struct TokenView {
  uint64_t batch = 0;
  uint64_t sequence = 0;
  const int32_t* data = nullptr;

  uint64_t rows() const { return batch * sequence; }
};

}  // namespace penstock::kernels
