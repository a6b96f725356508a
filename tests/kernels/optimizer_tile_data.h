// A tile of an optimizer's states as test data, with values in it and memory around it.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <ostream>
#include <span>
#include <type_traits>
#include <vector>

#include "base/random.h"
#include "kernels/state/optimizer_tile.h"

namespace penstock::kernels {

/// For copies, which are written past the cache where they begin with a whole vector: not by luck.
template <typename T>
struct OnVectors {
  using value_type = T;  // NOLINT(readability-identifier-naming): the standard library asks for it
  static constexpr std::align_val_t kMaxAlignment{256};
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kMaxAlignment)); }
  void deallocate(T* data, size_t) { ::operator delete(data, kMaxAlignment); }
  bool operator==(const OnVectors&) const = default;
};

/// What a tile is made of. `copy`: the dtype of the 16-bit copy of a whole master's weights.
struct TileFormat {
  bool split = true;
  DType gradient = DType::kBFloat16;
  DType moments = DType::kFloat32;
  std::optional<DType> copy = std::nullopt;
  bool exp_avg = true;
  bool exp_avg_sq = true;
};

inline void PrintTo(const TileFormat& format, std::ostream* out) {
  *out << (format.split ? "split" : "whole") << " master, " << ToString(format.gradient)
       << " gradient, " << ToString(format.moments) << " moments, "
       << (format.copy ? ToString(*format.copy) : "no") << " copy";
}

/// Every layout of the master, with every dtype of gradient and moments: for a rule with these
/// moments.
inline std::vector<TileFormat> AllFormats(bool exp_avg, bool exp_avg_sq) {
  std::vector<TileFormat> formats;
  for (const DType gradient : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const DType moments : {DType::kFloat32, DType::kBFloat16}) {
      formats.push_back({true, gradient, moments, std::nullopt, exp_avg, exp_avg_sq});
      formats.push_back({false, gradient, moments, std::nullopt, exp_avg, exp_avg_sq});
      formats.push_back({false, gradient, moments, DType::kBFloat16, exp_avg, exp_avg_sq});
      formats.push_back({false, gradient, moments, DType::kFloat16, exp_avg, exp_avg_sq});
    }
  }
  return formats;
}

/// The storage of one tile: `count` elements that begin `shift` elements into larger arrays.
class TileData {
 public:
  TileData(TileFormat format, uint64_t count, uint64_t shift = 0)
      : format_(format),
        count_(count),
        shift_(shift),
        whole_(format.split ? 0 : size()),
        hi_(format.split ? size() : 0),
        lo_(hi_.size()),
        bf16_copy_(format.copy == DType::kBFloat16 ? size() : 0),
        fp16_copy_(format.copy == DType::kFloat16 ? size() : 0),
        m_(format.exp_avg && !HasHalfMoments() ? size() : 0),
        v_(format.exp_avg_sq && !HasHalfMoments() ? size() : 0),
        half_m_(format.exp_avg && HasHalfMoments() ? size() : 0),
        half_v_(format.exp_avg_sq && HasHalfMoments() ? size() : 0),
        gradient_(size() * SizeOf(format.gradient).value) {}

  /// A bf16 gradient or moment keeps the upper half of its value, an fp16 gradient is rounded.
  void Set(uint64_t i, float weight, float m, float v, float gradient) {
    const uint64_t at = shift_ + i;
    if (format_.split) {
      hi_[at] = Split(weight).hi;
      lo_[at] = Split(weight).lo;
    } else {
      whole_[at] = weight;
    }
    if (!m_.empty()) m_[at] = m;
    if (!v_.empty()) v_[at] = v;
    if (!half_m_.empty()) half_m_[at] = UpperHalf(m);
    if (!half_v_.empty()) half_v_[at] = UpperHalf(v);
    SetGradient(i, gradient);
  }

  OptimizerTile tile() {
    const auto cut = [&](auto& vector) {
      return vector.empty() ? std::span(vector) : std::span(vector).subspan(shift_, count_);
    };
    OptimizerTile tile{.exp_avg = cut(m_),
                       .exp_avg_sq = cut(v_),
                       .rounding = {0x5eed'0123'4567'89abU, 3 * kBlockElements + shift_},
                       .gradient = gradient_.data() + shift_ * SizeOf(format_.gradient).value,
                       .gradient_dtype = format_.gradient};
    if (!half_m_.empty()) tile.exp_avg = cut(half_m_);
    if (!half_v_.empty()) tile.exp_avg_sq = cut(half_v_);
    if (format_.split) {
      tile.weight = cut(hi_);
      tile.lo = cut(lo_);
    } else if (format_.copy == DType::kBFloat16) {
      tile.weight = cut(bf16_copy_);
      tile.master = cut(whole_);
    } else if (format_.copy == DType::kFloat16) {
      tile.weight = cut(fp16_copy_);
      tile.master = cut(whole_);
    } else {
      tile.weight = cut(whole_);
    }
    return tile;
  }

  float weight(uint64_t i) const {
    const uint64_t at = shift_ + i;
    return format_.split ? Join({hi_[at], lo_[at]}) : whole_[at];
  }
  /// 0 for a moment that the format does not have.
  float m(uint64_t i) const { return Moment(m_, half_m_, i); }
  float v(uint64_t i) const { return Moment(v_, half_v_, i); }
  /// The 16-bit copy of a weight, as its bits.
  uint16_t copy(uint64_t i) const {
    const uint64_t at = shift_ + i;
    return format_.copy == DType::kBFloat16 ? bf16_copy_[at].bits : fp16_copy_[at].bits;
  }
  /// What the kernel reads.
  float gradient(uint64_t i) const {
    const std::byte* const from = gradient_.data() + (shift_ + i) * SizeOf(format_.gradient).value;
    switch (format_.gradient) {
      case DType::kBFloat16:
        return ToFloat(Read<BFloat16>(from));
      case DType::kFloat16:
        return ToFloat(Read<Float16>(from));
      case DType::kFloat32:
        break;
    }
    return Read<float>(from);
  }
  uint64_t count() const { return count_; }
  const TileFormat& format() const { return format_; }

  /// How many values differ, the surroundings of the tile included. NaN equals NaN.
  int DifferencesFrom(const TileData& other) const {
    return Differences(whole_, other.whole_) + SplitDifferences(other) +
           Differences(bf16_copy_, other.bf16_copy_) + Differences(fp16_copy_, other.fp16_copy_) +
           Differences(m_, other.m_) + Differences(v_, other.v_) +
           Differences(half_m_, other.half_m_) + Differences(half_v_, other.half_v_);
  }

 private:
  static constexpr uint64_t kBehind = 160;  // more than the longest two vectors
  uint64_t size() const { return shift_ + count_ + kBehind; }
  bool HasHalfMoments() const { return format_.moments == DType::kBFloat16; }

  static BFloat16 UpperHalf(float value) {
    return BFloat16{static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16)};
  }

  void SetGradient(uint64_t i, float value) {
    std::byte* const to = gradient_.data() + (shift_ + i) * SizeOf(format_.gradient).value;
    const auto write = [&](auto element) { std::memcpy(to, &element, sizeof(element)); };
    switch (format_.gradient) {
      case DType::kBFloat16:
        return write(UpperHalf(value));
      case DType::kFloat16:
        return write(RoundToFloat16(value));
      case DType::kFloat32:
        return write(value);
    }
  }

  template <typename T>
  static T Read(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }

  float Moment(const std::vector<float>& fp32, const std::vector<BFloat16>& bf16,
               uint64_t i) const {
    if (!bf16.empty()) return ToFloat(bf16[shift_ + i]);
    return fp32.empty() ? 0 : fp32[shift_ + i];
  }

  static bool Differ(float a, float b) {
    return !(std::isnan(a) && std::isnan(b)) &&
           std::bit_cast<uint32_t>(a) != std::bit_cast<uint32_t>(b);
  }

  template <typename T, typename Allocator>
  static int Differences(const std::vector<T, Allocator>& a, const std::vector<T, Allocator>& b) {
    int differences = 0;
    for (size_t at = 0; at < a.size(); ++at) {
      if constexpr (std::is_same_v<T, float>) {
        differences += Differ(a[at], b[at]);
      } else {
        differences += Differ(ToFloat(a[at]), ToFloat(b[at]));
      }
    }
    return differences;
  }

  int SplitDifferences(const TileData& other) const {
    int differences = 0;
    for (size_t at = 0; at < hi_.size(); ++at) {
      differences += Differ(Join({hi_[at], lo_[at]}), Join({other.hi_[at], other.lo_[at]}));
    }
    return differences;
  }

  TileFormat format_;
  uint64_t count_;
  uint64_t shift_;
  std::vector<float> whole_;
  std::vector<BFloat16> hi_;
  std::vector<int16_t> lo_;
  std::vector<BFloat16, OnVectors<BFloat16>> bf16_copy_;
  std::vector<Float16, OnVectors<Float16>> fp16_copy_;
  std::vector<float> m_;
  std::vector<float> v_;
  std::vector<BFloat16> half_m_;
  std::vector<BFloat16> half_v_;
  std::vector<std::byte> gradient_;
};

/// The values of one element.
struct Sample {
  float weight, m, v, gradient;
};

/// Elements 0, 1, … of `samples`, which are made once for all tiles.
inline void Fill(TileData& data, const std::vector<Sample>& samples) {
  for (uint64_t i = 0; i < data.count(); ++i) {
    const Sample& sample = samples.at(i);
    data.Set(i, sample.weight, sample.m, sample.v, sample.gradient);
  }
}

/// The longest tile that tests fill.
inline constexpr uint64_t kMaxElements = 5000;

inline void FillNormal(TileData& data) {
  static const std::vector<Sample> samples = [] {
    std::vector<Sample> made;
    for (uint64_t i = 0; i < kMaxElements; ++i) {
      const float root = StandardNormal(1, 2, i) * 1e-2f;
      made.push_back({StandardNormal(1, 0, i), StandardNormal(1, 1, i) * 1e-2f, root * root,
                      StandardNormal(1, 3, i) * 4e-2f});
    }
    return made;
  }();
  Fill(data, samples);
}

}  // namespace penstock::kernels
