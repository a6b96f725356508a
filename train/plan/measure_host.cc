#include "train/plan/measure_host.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "base/mapping.h"
#include "kernels/state/block_sums.h"
#include "kernels/state/optimizer.h"
#include "kernels/state/optimizer_tile.h"
#include "offload/layout.h"
#include "train/plan/work_time.h"
#include "zero/plan/partitioner.h"
#include "zero/states/tile_planes.h"
#include "zero/update_scalars.h"

namespace penstock::train {
namespace {

/// States of so many elements fit kMeasuringMemory.
constexpr uint64_t kMaxElements = uint64_t{2} << 20;
constexpr Bytes kOfElement{kMeasuringMemory.value / kMaxElements};

uint64_t ElementsIn(Bytes most) {
  const uint64_t elements = std::min(kMaxElements, most / kOfElement);
  return std::max(elements / kernels::kChunkElements, uint64_t{1}) * kernels::kChunkElements;
}

/// Of what this thread does.
Result<double> OfHere(const std::function<void()>& work) {
  return WorkTime().Of([&]() -> Result<WorkSpan> {
    WorkSpan span{.begin = WorkInstant::Now(), .end = {}};
    work();
    span.end = WorkInstant::Now();
    return span;
  });
}

}  // namespace

Result<HostSpeed> MeasureHost(const config::Config& config, Bytes most) {
  const uint64_t count = ElementsIn(most);
  const zero::ModelSpec model{.modules = {{"m", {{"w", {count}}}}}};
  config::Config one_tile = config;
  one_tile.tile_elements = count;
  const offload::ShardLayout layout = zero::MakeLayout(model, one_tile);
  const offload::TileId tile{0};
  PENSTOCK_ASSIGN(const Mapping weight, Mapping::Create(layout.WeightBytes(tile)));
  PENSTOCK_ASSIGN(const Mapping record, Mapping::Create(layout.RecordBytes(tile)));
  PENSTOCK_ASSIGN(const Mapping gradient, Mapping::Create(layout.GradientBytes(tile)));
  const zero::UpdateScalars scalars(model.groups, config.optimizer, /*seed=*/0, config.optimizer.lr,
                                    /*t=*/1, /*grad_scale=*/1);
  const auto elements = static_cast<double>(count);
  PENSTOCK_ASSIGN(const double update, OfHere([&] {
                    for (uint64_t begin = 0; begin < count; begin += kernels::kChunkElements) {
                      kernels::OptimizerTile planes =
                          zero::PlanesOf(layout, tile, weight.data(), record.data(),
                                         gradient.data(), begin, kernels::kChunkElements);
                      planes.rounding = scalars.RoundingOf(layout.tile(tile));
                      kernels::Update(scalars.Of(layout.tile(tile)), planes);
                    }
                  }));
  std::vector<double> sums(count / kBlockElements);
  PENSTOCK_ASSIGN(const double norm, OfHere([&] {
                    kernels::BlockSums(gradient.data(), layout.GradientDType(tile), count, sums);
                  }));
  const uint64_t copied = std::min(weight.size().value, record.size().value);
  PENSTOCK_ASSIGN(const double copy,
                  OfHere([&] { std::memcpy(weight.data(), record.data(), copied); }));
  return HostSpeed{.update_element = update / elements,
                   .norm_element = norm / elements,
                   .copy_byte = copy / static_cast<double>(copied)};
}

}  // namespace penstock::train
