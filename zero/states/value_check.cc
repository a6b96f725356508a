#include "zero/states/value_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "zero/states/committed_state.h"
#include "zero/states/tile_planes.h"

namespace penstock::zero {
namespace {

constexpr size_t kChunkElements = 4096;

/// Of a value whose sign does not count: larger values have larger bits, and those that are not
/// finite the largest.
uint32_t MagnitudeBits(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffffU; }

const char* NameOf(StateKind kind) {
  switch (kind) {
    case StateKind::kMaster:
      return "weights";
    case StateKind::kExpAvg:
      return "values of exp_avg";
    case StateKind::kExpAvgSq:
      break;
  }
  return "values of exp_avg_sq";
}

/// Elements [begin, begin + size) of a state of a tile.
ValueCounts CountIn(StateKind kind, const offload::ShardLayout& shard, offload::TileId tile,
                    std::span<const std::byte> weight, std::span<const std::byte> record,
                    offload::Range range) {
  std::array<float, kChunkElements> chunk;
  ValueCounts counts;
  for (uint64_t at = range.begin; at < range.end();) {
    const auto values =
        std::span(chunk).first(std::min<uint64_t>(kChunkElements, range.end() - at));
    LoadState(kind, shard, tile, weight.data(), record.data(), at, values);
    counts.Add(values);
    at += values.size();
  }
  return counts;
}

}  // namespace

void ValueCounts::Add(std::span<const float> values) {
  uint32_t largest_bits = 0;
  for (const float value : values) largest_bits = std::max(largest_bits, MagnitudeBits(value));
  if (largest_bits <= MagnitudeBits(kLargeWeight)) return;
  for (const float value : values) {
    if (!std::isfinite(value)) {
      ++not_finite;
    } else if (std::abs(value) > kLargeWeight) {
      ++large;
      largest = std::max(largest, std::abs(value));
    }
  }
}

void ValueCounts::Add(const ValueCounts& other) {
  not_finite += other.not_finite;
  large += other.large;
  largest = std::max(largest, other.largest);
}

std::string ToText(const ValueFault& fault) {
  const ValueCounts& counts = fault.counts;
  std::string text = fmt::format("{}: of {} {}", fault.tensor, fault.elements, NameOf(fault.kind));
  if (counts.not_finite > 0) text += fmt::format(" {} are not finite", counts.not_finite);
  if (counts.large == 0) return text;
  return text + fmt::format("{} {} are beyond {:g}, up to {:.3g}",
                            counts.not_finite > 0 ? ", and" : "", counts.large, kLargeWeight,
                            counts.largest);
}

void ValueCheck::AddTile(const offload::ShardLayout& shard, offload::TileId tile,
                         std::span<const std::byte> weight, std::span<const std::byte> record) {
  const offload::TileLayout& place = shard.tile(tile);
  const std::vector<offload::TensorLayout>& tensors = model_.module(place.module).tensors;
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    const uint64_t begin = std::max(tensors[tensor].offset, place.begin);
    const uint64_t end =
        std::min(tensors[tensor].offset + tensors[tensor].elements, place.begin + place.elements);
    if (begin >= end) continue;
    const offload::Range range = {.begin = begin - place.begin, .elements = end - begin};
    for (const StateKind kind : StatesOf(model_.group(tensors[tensor].group))) {
      ValueCounts counts = CountIn(kind, shard, tile, weight, record, range);
      if (kind != StateKind::kMaster) counts.large = 0;
      if (counts.not_finite == 0 && counts.large == 0) continue;
      MutexLock lock(mutex_);
      found_[{place.module, tensor, kind}].Add(counts);
    }
  }
}

std::vector<ValueFault> ValueCheck::Faults() const {
  MutexLock lock(mutex_);
  std::vector<ValueFault> faults;
  for (const auto& [place, counts] : found_) {
    const auto& [module, tensor, kind] = place;
    const offload::TensorLayout& of = model_.module(module).tensors[tensor];
    faults.push_back({.tensor = of.name, .kind = kind, .elements = of.elements, .counts = counts});
  }
  return faults;
}

}  // namespace penstock::zero
