#include "zero/engine/device_figures.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <variant>

#include "base/check.h"

namespace penstock::zero {
namespace {

using kernels::OptimizerTile;
using kernels::StatePart;
using kernels::TensorPart;
using kernels::TrustSums;
using kernels::WeightFigures;
using offload::Index;
using offload::ModuleId;
using offload::TileId;

/// A sum, a magnitude and a count.
constexpr Bytes kOfFigure{sizeof(double) + sizeof(float) + sizeof(uint32_t)};

void Fetch(device::Stream& stream, void* host, const void* device, Bytes size) {
  if (size.value == 0) return;
  stream.CopyToHost(static_cast<std::byte*>(host), static_cast<const std::byte*>(device), size);
}

void Send(device::Stream& stream, void* device, const void* host, Bytes size) {
  if (size.value == 0) return;
  stream.CopyToDevice(static_cast<std::byte*>(device), static_cast<const std::byte*>(host), size);
}

}  // namespace

DeviceFigures::DeviceFigures(const offload::ShardLayout& layout)
    : layout_(layout), figures_(layout), places_(layout.tiles.size()) {
  for (const ModuleId id : offload::Ids<ModuleId>(layout.model.modules.size())) AddModule(id);
}

void DeviceFigures::AddModule(ModuleId id) {
  Module module{.figures_before = all_figures_, .updates_before = all_updates_};
  for (const GradientBatch& batch : GradientBatches(layout_, id, kWholeModule)) {
    module.runs.push_back(MakeRun(batch, module));
    module.figures += batch.elements / kBlockElements + module.runs.back().end_count;
  }
  module.updates = all_updates_ - module.updates_before;
  all_figures_ += module.figures;
  AddGroups(id, module);
  modules_.push_back(std::move(module));
}

DeviceFigures::Run DeviceFigures::MakeRun(const GradientBatch& batch, Module& module) {
  Run run{.batch = batch, .figures = module.figures, .first_end = ends_.size()};
  uint64_t elements = 0;  // of the tiles before
  for (const TileId tile : batch.tiles) {
    const offload::TileLayout& place = layout_.tile(tile);
    places_[Index(tile)] = {
        .blocks = module.figures + elements / kBlockElements,
        .ends = module.figures + batch.elements / kBlockElements + ends_.size() - run.first_end,
        .updates = all_updates_};
    for (const TensorPart& part : figures_.Parts(tile)) {
      all_updates_ += part.blocks();
      if (part.whole()) continue;
      ends_.push_back({.begin = elements + part.begin - place.begin, .elements = part.elements()});
    }
    elements += place.elements;
  }
  run.end_count = ends_.size() - run.first_end;
  return run;
}

void DeviceFigures::AddGroups(ModuleId id, Module& module) {
  for (const TileId tile : layout_.TrainedTilesOf(id)) {
    const auto index = static_cast<uint32_t>(Index(tile));
    if (module.groups.empty() ||
        layout_.tile(module.groups.back().tiles[0]).group != layout_.tile(tile).group) {
      module.groups.push_back(
          {.tiles = {index, index + 1}, .updates = places_[Index(tile)].updates});
    } else {
      Group& group = module.groups.back();
      group.tiles = {static_cast<uint32_t>(Index(group.tiles[0])), index + 1};
    }
    size_t part = 0;
    const offload::TileLayout& place = layout_.tile(tile);
    ForEachPiece(figures_.Parts(tile), place.begin, 0, place.elements, part,
                 [&](uint64_t, uint64_t, std::optional<size_t>) { ++all_parts_; });
  }
}

Bytes DeviceFigures::need() const {
  return kOfFigure * all_figures_ + Bytes{sizeof(WeightFigures)} * all_updates_ +
         Bytes{sizeof(StatePart)} * all_parts_ +
         Bytes{sizeof(kernels::GradientEnd)} * ends_.size() +
         Bytes{sizeof(float)} * layout_.model.TensorCount() +
         Bytes{sizeof(uint32_t)} * layout_.tiles.size();
}

Bytes DeviceFigures::Need(const offload::ShardLayout& layout) {
  return DeviceFigures(layout).need();
}

Result<std::unique_ptr<DeviceFigures>> DeviceFigures::Create(const offload::ShardLayout& layout,
                                                             device::Device& device,
                                                             device::Stream& stream,
                                                             const PlanesOfTile& planes_of) {
  std::unique_ptr<DeviceFigures> figures(new DeviceFigures(layout));
  const Bytes need = figures->need();
  PENSTOCK_ASSIGN(figures->device_, device.Allocate(need, "block sums and figures"));
  PENSTOCK_ASSIGN(figures->host_, device.AllocateHost(need));
  figures->FillTables(planes_of);
  const Memory host = figures->In(figures->host_.data());
  const Memory on_device = figures->In(figures->device_.data());
  Send(stream, on_device.parts, host.parts, Bytes{sizeof(StatePart)} * figures->all_parts_);
  Send(stream, on_device.ends, host.ends,
       Bytes{sizeof(kernels::GradientEnd)} * figures->ends_.size());
  PENSTOCK_TRY(stream.Synchronize());
  return figures;
}

DeviceFigures::Memory DeviceFigures::In(std::byte* memory) const {
  Memory in{};
  in.figures = memory;
  in.updates = reinterpret_cast<WeightFigures*>(memory + (kOfFigure * all_figures_).value);
  in.parts = reinterpret_cast<StatePart*>(in.updates + all_updates_);
  in.ends = reinterpret_cast<kernels::GradientEnd*>(in.parts + all_parts_);
  in.step_sizes = reinterpret_cast<float*>(in.ends + ends_.size());
  in.finite = reinterpret_cast<uint32_t*>(in.step_sizes + layout_.model.TensorCount());
  return in;
}

void DeviceFigures::FillTables(const PlanesOfTile& planes_of) {
  std::ranges::copy(ends_, In(host_.data()).ends);
  uint64_t first_part = 0;
  for (Module& module : modules_) {
    for (Run& run : module.runs) {
      // The gradients of a module lie one behind the other in the order of its tiles.
      run.gradient =
          static_cast<std::byte*>(const_cast<void*>(planes_of(run.batch.tiles[0]).gradient));
    }
    for (Group& group : module.groups) {
      FillGroup(planes_of, group, first_part);
      first_part += group.parts.count;
      for (const TileId tile : group.tiles) AddWeights(planes_of(tile), tile, module);
    }
  }
  PENSTOCK_CHECK(first_part == all_parts_);
}

void DeviceFigures::FillGroup(const PlanesOfTile& planes_of, Group& group, uint64_t first_part) {
  std::vector<StatePart> parts;
  std::vector<StatePart> padding;
  for (const TileId tile : group.tiles) {
    const OptimizerTile planes = planes_of(tile);
    const offload::TileLayout& place = layout_.tile(tile);
    const std::span<const TensorPart> of_tile = figures_.Parts(tile);
    size_t next = 0;
    ForEachPiece(of_tile, place.begin, 0, place.elements, next,
                 [&](uint64_t from, uint64_t to, std::optional<size_t> part) {
                   const uint64_t tensor = part ? of_tile[*part].tensor : kernels::kNoTensor;
                   (part ? parts : padding)
                       .push_back(kernels::MakeStatePart(planes, from, to - from, tensor));
                 });
  }
  parts.insert(parts.end(), padding.begin(), padding.end());
  group.parts = kernels::MakeStateParts(planes_of(group.tiles[0]), parts);
  std::ranges::copy(parts, In(host_.data()).parts + first_part);
  group.parts.parts = In(device_.data()).parts + first_part;
}

void DeviceFigures::AddWeights(const OptimizerTile& planes, TileId tile, Module& module) const {
  const DType dtype = layout_.GradientDType(tile);  // is the weight's
  const uint64_t elements = layout_.tile(tile).elements;
  const auto index = static_cast<uint32_t>(Index(tile));
  if (!module.weights.empty()) {
    WeightRun& last = module.weights.back();
    if (last.dtype == dtype &&
        last.weights + (SizeOf(dtype) * last.elements).value == planes.weight.data()) {
      last.tiles = {static_cast<uint32_t>(Index(last.tiles[0])), index + 1};
      last.elements += elements;
      return;
    }
  }
  module.weights.push_back({.tiles = {index, index + 1},
                            .weights = planes.weight.data(),
                            .dtype = dtype,
                            .elements = elements});
}

/// Of a module's figures, those from `first` on.
kernels::DeviceBlockFigures DeviceFigures::FiguresIn(std::byte* memory, const Module& module,
                                                     uint64_t first) const {
  auto* const sums = reinterpret_cast<double*>(memory + (kOfFigure * module.figures_before).value);
  auto* const largest = reinterpret_cast<float*>(sums + module.figures);
  auto* const nonfinite = reinterpret_cast<uint32_t*>(largest + module.figures);
  return {.sums = sums + first, .largest = largest + first, .nonfinite = nonfinite + first};
}

kernels::BlockFigures DeviceFigures::OnHost(const Module& module, uint64_t first,
                                            uint64_t count) const {
  const kernels::DeviceBlockFigures figures = FiguresIn(host_.data(), module, first);
  return {.sums = {figures.sums, count},
          .largest = {figures.largest, count},
          .nonfinite = {figures.nonfinite, count}};
}

size_t DeviceFigures::RoundAndSum(const FinishedSums& finished, ModuleId id, GradientNorm& norm) {
  for (const Run& run : Of(id).runs) {
    finished.operators->RoundGradients(*finished.stream, finished.sums + run.batch.begin,
                                       run.batch.dtype, run.batch.elements, run.gradient);
  }
  return Sum(*finished.stream, *finished.operators, id, norm);
}

size_t DeviceFigures::Sum(device::Stream& stream, kernels::StateOperators& operators, ModuleId id,
                          GradientNorm& norm) {
  const Module& module = Of(id);
  const kernels::GradientEnd* const ends = In(device_.data()).ends;
  for (const Run& run : module.runs) {
    operators.GradientFigures(stream, run.gradient, run.batch.dtype, run.batch.elements,
                              ends + run.first_end, run.end_count,
                              FiguresIn(device_.data(), module, run.figures));
  }
  Fetch(stream, FiguresIn(host_.data(), module, 0).sums, FiguresIn(device_.data(), module, 0).sums,
        kOfFigure * module.figures);
  stream.Call([this, &module, &norm]() { GiveToNorm(module, norm); });
  return layout_.TrainedTilesOf(id).size();
}

/// A block is finite when its sum is.
void DeviceFigures::GiveToNorm(const Module& module, GradientNorm& norm) const {
  for (const Run& run : module.runs) {
    const std::span<const double> sums =
        OnHost(module, run.figures, run.batch.elements / kBlockElements).sums;
    std::ranges::copy(sums, norm.Sums(run.batch.tiles).begin());
    norm.Arrived(std::ranges::all_of(sums, [](double sum) { return std::isfinite(sum); }),
                 run.batch.tiles.size());
  }
}

/// Of rules with trust ratios, the step size of each tensor. The copy before has ended, as a step's
/// gradients were waited for since.
void DeviceFigures::BeginUpdate(device::Stream& stream, const UpdateScalars& scalars) {
  updated_ = true;
  if (!scalars.has_trust()) return;
  float* const step_sizes = In(host_.data()).step_sizes;
  for (const TileId tile : layout_.Tiles()) {
    if (layout_.frozen(tile)) continue;
    for (const TensorPart& part : figures_.Parts(tile)) {
      step_sizes[part.tensor] =
          std::get<kernels::LambScalars>(scalars.Of(layout_.tile(tile), part.tensor))
              .negative_step_size;
    }
  }
  Send(stream, In(device_.data()).step_sizes, step_sizes,
       Bytes{sizeof(float)} * layout_.model.TensorCount());
}

size_t DeviceFigures::Update(device::Stream& stream, kernels::StateOperators& operators,
                             ModuleId id, const UpdateScalars& scalars) {
  const Module& module = Of(id);
  const Memory device = In(device_.data());
  for (const Group& group : module.groups) {
    const offload::TileLayout& place = layout_.tile(group.tiles[0]);
    operators.Update(stream,
                     {.scalars = scalars.Of(place),
                      .rounding_key = scalars.RoundingOf(place).key,
                      .step_sizes = scalars.has_trust() ? device.step_sizes : nullptr},
                     group.parts, device.updates + group.updates);
  }
  FetchUpdates<WeightFigures>(stream, module);
  return layout_.TrainedTilesOf(id).size();
}

/// What a pass has left of a module's parts lies where the figures of its first update would.
template <typename OfBlock>
void DeviceFigures::FetchUpdates(device::Stream& stream, const Module& module) const {
  static_assert(sizeof(OfBlock) <= sizeof(WeightFigures));
  Fetch(stream, reinterpret_cast<OfBlock*>(In(host_.data()).updates) + module.updates_before,
        reinterpret_cast<OfBlock*>(In(device_.data()).updates) + module.updates_before,
        Bytes{sizeof(OfBlock)} * module.updates);
}

void DeviceFigures::SumForTrust(device::Stream& stream, kernels::StateOperators& operators,
                                ModuleId id, const UpdateScalars& scalars) {
  auto* const sums = reinterpret_cast<TrustSums*>(In(device_.data()).updates);
  for (const Group& group : Of(id).groups) {
    operators.SumForTrust(stream, scalars.Of(layout_.tile(group.tiles[0])), group.parts,
                          sums + group.updates);
  }
  FetchUpdates<TrustSums>(stream, Of(id));
}

void DeviceFigures::TakeTrust(TrustBlocks& trust) const {
  const auto* const sums = reinterpret_cast<const TrustSums*>(In(host_.data()).updates);
  for (const TileId tile : layout_.Tiles()) {
    const std::span<TrustSums> of_tile = trust.OfTile(tile);
    std::copy_n(sums + places_[Index(tile)].updates, of_tile.size(), of_tile.begin());
  }
}

void DeviceFigures::TakeUpdate(TileId tile) {
  const WeightFigures* next = In(host_.data()).updates + places_[Index(tile)].updates;
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
    const Module& module = Of(layout_.tile(tile).module);
    const Place& place = places_[Index(tile)];
    figures_.TakeGradientEnds(
        tile, OnHost(module, place.ends, module.figures - place.ends),
        OnHost(module, place.blocks, layout_.tile(tile).elements / kBlockElements));
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

Result<std::optional<TileId>> DeviceFigures::FirstNotFinite(device::Stream& stream,
                                                            kernels::StateOperators& operators) {
  const Memory device = In(device_.data());
  const Memory host = In(host_.data());
  for (const Module& module : modules_) {
    uint64_t block = 0;
    for (const WeightRun& run : module.weights) {
      operators.BlockSums(stream, run.weights, run.dtype, run.elements,
                          FiguresIn(device_.data(), module, block).sums,
                          device.finite + Index(run.tiles[0]));
      block += run.elements / kBlockElements;
    }
  }
  Fetch(stream, host.finite, device.finite, Bytes{sizeof(uint32_t)} * layout_.tiles.size());
  PENSTOCK_TRY(stream.Synchronize());
  for (const Module& module : modules_) {
    uint64_t block = 0;
    for (const WeightRun& run : module.weights) {
      if (host.finite[Index(run.tiles[0])] == 0)
        return FirstNotFiniteOf(stream, module, run, block);
      block += run.elements / kBlockElements;
    }
  }
  return std::optional<TileId>();
}

/// Among the tiles of a run whose block sums are on the device, from `block` on in its module.
Result<std::optional<TileId>> DeviceFigures::FirstNotFiniteOf(device::Stream& stream,
                                                              const Module& module,
                                                              const WeightRun& run,
                                                              uint64_t block) const {
  const double* sum = FiguresIn(host_.data(), module, block).sums;
  Fetch(stream, FiguresIn(host_.data(), module, block).sums,
        FiguresIn(device_.data(), module, block).sums,
        Bytes{sizeof(double)} * (run.elements / kBlockElements));
  PENSTOCK_TRY(stream.Synchronize());
  for (const TileId tile : run.tiles) {
    for (uint64_t i = 0; i < layout_.tile(tile).elements / kBlockElements; ++i) {
      if (!std::isfinite(*sum++)) return std::optional(tile);
    }
  }
  PENSTOCK_CHECK(false, "weights are not finite, and their block sums are");
}

}  // namespace penstock::zero
