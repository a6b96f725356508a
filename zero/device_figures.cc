#include "zero/device_figures.h"

#include <algorithm>
#include <span>
#include <utility>

namespace penstock::zero {
namespace {

using kernels::OptimizerTile;
using kernels::TensorPart;
using kernels::WeightFigures;
using offload::Index;
using offload::TileId;

/// A sum, a magnitude and a count.
constexpr Bytes kOfBlock{sizeof(double) + sizeof(float) + sizeof(uint32_t)};
constexpr Bytes kOfUpdate{sizeof(WeightFigures)};
constexpr Bytes kFlag{sizeof(uint32_t)};

void Fetch(device::Stream& stream, void* host, const void* device, Bytes size) {
  stream.CopyToHost(static_cast<std::byte*>(host), static_cast<const std::byte*>(device), size);
}

}  // namespace

DeviceFigures::DeviceFigures(const offload::ShardLayout& layout)
    : layout_(layout), figures_(layout) {
  Place next;
  for (const TileId tile : layout.Tiles()) {
    places_.push_back(next);
    if (layout.frozen(tile)) continue;
    next.blocks += Blocks(tile);
    for (const TensorPart& part : figures_.Parts(tile)) {
      next.updates += part.blocks();
      if (!part.whole()) next.ends += SizeOf(layout.GradientDType(tile)) * part.elements();
    }
  }
  places_.push_back(next);
}

DeviceFigureBytes DeviceFigures::need() const {
  const Place& all = places_.back();
  const Bytes device =
      kOfBlock * all.blocks + kOfUpdate * all.updates + kFlag * layout_.tiles.size();
  return {.device = device, .host = device + all.ends};
}

DeviceFigureBytes DeviceFigures::Need(const offload::ShardLayout& layout) {
  return DeviceFigures(layout).need();
}

Result<std::unique_ptr<DeviceFigures>> DeviceFigures::Create(const offload::ShardLayout& layout,
                                                             device::Device& device) {
  std::unique_ptr<DeviceFigures> figures(new DeviceFigures(layout));
  const DeviceFigureBytes need = figures->need();
  PENSTOCK_ASSIGN(figures->device_, device.Allocate(need.device, "block sums and figures"));
  PENSTOCK_ASSIGN(figures->host_, device.AllocateHost(need.host));
  return figures;
}

DeviceFigures::TilePlace DeviceFigures::In(std::byte* memory, TileId tile) const {
  const Place& all = places_.back();
  const Place& before = places_[Index(tile)];
  const uint64_t blocks = Blocks(tile);
  std::byte* const updates = memory + (kOfBlock * all.blocks).value;
  std::byte* const flags = updates + (kOfUpdate * all.updates).value;
  TilePlace place{};
  place.sums = reinterpret_cast<double*>(memory + (kOfBlock * before.blocks).value);
  place.largest = reinterpret_cast<float*>(place.sums + blocks);
  place.nonfinite = reinterpret_cast<uint32_t*>(place.largest + blocks);
  place.finite = reinterpret_cast<uint32_t*>(flags) + Index(tile);
  place.updates = reinterpret_cast<WeightFigures*>(updates) + before.updates;
  return place;
}

std::byte* DeviceFigures::HostEnds(TileId tile) const {
  return host_.data() + (need().device + places_[Index(tile)].ends).value;
}

kernels::BlockFigures DeviceFigures::OnHost(TileId tile) const {
  const TilePlace place = In(host_.data(), tile);
  const uint64_t blocks = Blocks(tile);
  return {.sums = {place.sums, blocks},
          .largest = {place.largest, blocks},
          .nonfinite = {place.nonfinite, blocks}};
}

void DeviceFigures::SumGradient(device::Stream& stream, kernels::StateOperators& operators,
                                TileId tile, const std::byte* gradient, GradientNorm& norm) {
  const TilePlace device = In(device_.data(), tile);
  const TilePlace host = In(host_.data(), tile);
  operators.BlockSumsAndFigures(
      stream, gradient, layout_.GradientDType(tile), layout_.tile(tile).elements,
      {.sums = device.sums, .largest = device.largest, .nonfinite = device.nonfinite},
      device.finite);
  Fetch(stream, host.sums, device.sums, kOfBlock * Blocks(tile));
  Fetch(stream, host.finite, device.finite, kFlag);
  CopyEnds(stream, tile, gradient);
  stream.Call([sums = OnHost(tile).sums, of_tile = norm.Sums(tile), finite = host.finite, &norm]() {
    std::ranges::copy(sums, of_tile.begin());
    norm.Arrived(*finite != 0);
  });
}

/// Parts that lie one behind the other are copied together.
void DeviceFigures::CopyEnds(device::Stream& stream, TileId tile, const std::byte* gradient) const {
  const Bytes element = SizeOf(layout_.GradientDType(tile));
  const uint64_t begin_of_tile = layout_.tile(tile).begin;
  std::byte* to = HostEnds(tile);
  uint64_t begin = 0;
  uint64_t end = 0;
  const auto copy = [&]() {
    if (begin == end) return;
    const Bytes size = element * (end - begin);
    stream.CopyToHost(to, gradient + (element * (begin - begin_of_tile)).value, size);
    to += size.value;
  };
  for (const TensorPart& part : figures_.Parts(tile)) {
    if (part.whole()) continue;
    if (part.begin != end) {
      copy();
      begin = part.begin;
    }
    end = part.end;
  }
  copy();
}

void DeviceFigures::Update(device::Stream& stream, kernels::StateOperators& operators, TileId tile,
                           const UpdateScalars& scalars, const OptimizerTile& planes) {
  const offload::TileLayout& place = layout_.tile(tile);
  WeightFigures* const first = In(device_.data(), tile).updates;
  WeightFigures* next = first;
  uint64_t done = 0;
  const auto pad = [&](uint64_t to) {
    if (done < to)
      operators.Update(stream, scalars.Of(place), kernels::Part(planes, done, to - done));
    done = to;
  };
  for (const TensorPart& part : figures_.Parts(tile)) {
    pad(part.begin - place.begin);
    operators.UpdateAndMeasure(stream, scalars.Of(place, part.tensor),
                               kernels::Part(planes, done, part.elements()), next);
    done += part.elements();
    next += part.blocks();
  }
  pad(place.elements);
  Fetch(stream, In(host_.data(), tile).updates, first,
        kOfUpdate * static_cast<uint64_t>(next - first));
  updated_ = true;
}

static_assert(sizeof(kernels::TrustSums) <= sizeof(WeightFigures));

void DeviceFigures::SumForTrust(device::Stream& stream, kernels::StateOperators& operators,
                                TileId tile, const UpdateScalars& scalars,
                                const OptimizerTile& planes) {
  const offload::TileLayout& place = layout_.tile(tile);
  auto* const first = reinterpret_cast<kernels::TrustSums*>(In(device_.data(), tile).updates);
  kernels::TrustSums* next = first;
  for (const TensorPart& part : figures_.Parts(tile)) {
    operators.SumForTrust(stream, scalars.Of(place),
                          kernels::Part(planes, part.begin - place.begin, part.elements()), next);
    next += part.blocks();
  }
  Fetch(stream, In(host_.data(), tile).updates, first,
        Bytes{sizeof(kernels::TrustSums)} * static_cast<uint64_t>(next - first));
}

void DeviceFigures::TakeTrust(TileId tile, std::span<kernels::TrustSums> sums) const {
  const auto* const from =
      reinterpret_cast<const kernels::TrustSums*>(In(host_.data(), tile).updates);
  std::copy_n(from, sums.size(), sums.begin());
}

void DeviceFigures::TakeUpdate(TileId tile) {
  const WeightFigures* next = In(host_.data(), tile).updates;
  const std::span<WeightFigures> of_parts = figures_.Update(tile, 0);
  const std::span<const TensorPart> parts = figures_.Parts(tile);
  for (size_t i = 0; i < parts.size(); ++i) {
    of_parts[i] = {};
    for (uint64_t block = 0; block < parts[i].blocks(); ++block) of_parts[i].Add(*next++);
  }
}

StepFigures DeviceFigures::Take() {
  for (const TileId tile : layout_.Tiles()) {
    if (layout_.frozen(tile)) continue;
    figures_.TakeGradientEnds(tile, HostEnds(tile), OnHost(tile));
    if (updated_) TakeUpdate(tile);
  }
  StepFigures figures{.gradients = figures_.Gradients(), .updates = {}};
  if (std::exchange(updated_, false)) figures.updates = figures_.Updates(0);
  return figures;
}

std::vector<WeightFigures> DeviceFigures::LastUpdate() {
  for (const TileId tile : layout_.Tiles()) {
    if (updated_ && !layout_.frozen(tile)) TakeUpdate(tile);
  }
  return figures_.Updates(0);
}

Result<std::optional<TileId>> DeviceFigures::FirstNotFinite(
    device::Stream& stream, kernels::StateOperators& operators,
    const std::function<const std::byte*(TileId tile)>& weight_of) {
  for (const TileId tile : layout_.Tiles()) {
    if (layout_.frozen(tile)) continue;
    const TilePlace device = In(device_.data(), tile);
    operators.BlockSums(stream, weight_of(tile), layout_.GradientDType(tile),
                        layout_.tile(tile).elements, device.sums, device.finite);
  }
  if (layout_.tiles.empty()) return std::optional<TileId>();
  const uint32_t* const finite = In(host_.data(), TileId{0}).finite;
  Fetch(stream, In(host_.data(), TileId{0}).finite, In(device_.data(), TileId{0}).finite,
        kFlag * layout_.tiles.size());
  PENSTOCK_TRY(stream.Synchronize());
  for (const TileId tile : layout_.Tiles()) {
    if (!layout_.frozen(tile) && finite[Index(tile)] == 0) return std::optional(tile);
  }
  return std::optional<TileId>();
}

}  // namespace penstock::zero
