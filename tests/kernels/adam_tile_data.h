// A tile of Adam's states as test data, with values in it and memory around it.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/random.h"
#include "kernels/adam.h"

namespace penstock::kernels {

/// The storage of one tile: `count` elements that begin `shift` elements into larger arrays.
class TileData {
 public:
  struct Format {
    bool split = true;
    DType gradient = DType::kBFloat16;
  };

  TileData(Format format, uint64_t count, uint64_t shift = 0)
      : format_(format),
        count_(count),
        shift_(shift),
        whole_(format.split ? 0 : size()),
        hi_(format.split ? size() : 0),
        lo_(hi_.size()),
        m_(size()),
        v_(size()),
        gradient_((size()) * SizeOf(format.gradient).value) {}

  /// A bf16 gradient keeps the upper half of `gradient`.
  void Set(uint64_t i, float weight, float m, float v, float gradient) {
    const uint64_t at = shift_ + i;
    if (format_.split) {
      hi_[at] = Split(weight).hi;
      lo_[at] = Split(weight).lo;
    } else {
      whole_[at] = weight;
    }
    m_[at] = m;
    v_[at] = v;
    const auto bits = std::bit_cast<uint32_t>(gradient);
    const auto half = static_cast<uint16_t>(bits >> 16);
    const size_t bytes = SizeOf(format_.gradient).value;
    std::memcpy(gradient_.data() + at * bytes,
                format_.gradient == DType::kBFloat16 ? static_cast<const void*>(&half) : &bits,
                bytes);
  }

  AdamTile tile() {
    const auto cut = [&](auto& vector) {
      return vector.empty() ? std::span(vector) : std::span(vector).subspan(shift_, count_);
    };
    return AdamTile{.weight_hi = cut(hi_),
                    .weight_lo = cut(lo_),
                    .weight = cut(whole_),
                    .exp_avg = cut(m_),
                    .exp_avg_sq = cut(v_),
                    .gradient = gradient_.data() + shift_ * SizeOf(format_.gradient).value,
                    .gradient_dtype = format_.gradient};
  }

  float weight(uint64_t i) const {
    const uint64_t at = shift_ + i;
    return format_.split ? Join({hi_[at], lo_[at]}) : whole_[at];
  }
  float m(uint64_t i) const { return m_[shift_ + i]; }
  float v(uint64_t i) const { return v_[shift_ + i]; }
  /// What the kernel reads: in bf16 the upper half of what was set.
  float gradient(uint64_t i) const {
    const size_t bytes = SizeOf(format_.gradient).value;
    uint32_t bits = 0;  // little-endian: the two bytes of a bfloat16 are the upper ones
    std::memcpy(reinterpret_cast<std::byte*>(&bits) + sizeof(bits) - bytes,
                gradient_.data() + (shift_ + i) * bytes, bytes);
    return std::bit_cast<float>(bits);
  }
  uint64_t count() const { return count_; }

  /// How many values differ, the surroundings of the tile included. NaN equals NaN.
  int DifferencesFrom(const TileData& other) const {
    int differences = 0;
    const auto differ = [](float a, float b) {
      return !(std::isnan(a) && std::isnan(b)) &&
             std::bit_cast<uint32_t>(a) != std::bit_cast<uint32_t>(b);
    };
    for (uint64_t at = 0; at < size(); ++at) {
      const uint64_t i = at - shift_;  // wraps around before the tile, and back when it is added
      differences +=
          differ(weight(i), other.weight(i)) + differ(m(i), other.m(i)) + differ(v(i), other.v(i));
    }
    return differences;
  }

 private:
  static constexpr uint64_t kBehind = 40;
  uint64_t size() const { return shift_ + count_ + kBehind; }

  Format format_;
  uint64_t count_;
  uint64_t shift_;
  std::vector<float> whole_;
  std::vector<BFloat16> hi_;
  std::vector<int16_t> lo_;
  std::vector<float> m_;
  std::vector<float> v_;
  std::vector<std::byte> gradient_;
};

inline constexpr TileData::Format kFormats[] = {{true, DType::kBFloat16},
                                                {true, DType::kFloat32},
                                                {false, DType::kBFloat16},
                                                {false, DType::kFloat32}};

inline std::vector<AdamHyperparameters> AllModes() {
  std::vector<AdamHyperparameters> modes;
  for (const bool adam_w : {true, false}) {
    for (const double decay : {0.0, 0.1}) {
      for (const bool correction : {true, false}) {
        modes.push_back({.beta1 = 0.9,
                         .beta2 = 0.999,
                         .eps = 1e-8,
                         .weight_decay = decay,
                         .adam_w_mode = adam_w,
                         .bias_correction = correction});
      }
    }
  }
  return modes;
}

inline void FillNormal(TileData& data) {
  for (uint64_t i = 0; i < data.count(); ++i) {
    const float v = StandardNormal(1, 2, i) * 1e-2f;
    data.Set(i, StandardNormal(1, 0, i), StandardNormal(1, 1, i) * 1e-2f, v * v,
             StandardNormal(1, 3, i) * 4e-2f);
  }
}

}  // namespace penstock::kernels
