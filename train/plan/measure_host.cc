#include "train/plan/measure_host.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "base/mapping.h"
#include "kernels/state/block_sums.h"
#include "kernels/state/optimizer.h"
#include "kernels/state/optimizer_tile.h"
#include "offload/layout.h"
#include "zero/partitioner.h"
#include "zero/tile_planes.h"
#include "zero/update_scalars.h"

namespace penstock::train {
namespace {

/// States of so many elements fit kMeasuringMemory.
constexpr uint64_t kMostElements = uint64_t{2} << 20;
constexpr Bytes kOfElement{kMeasuringMemory.value / kMostElements};
constexpr int kRounds = 3;

uint64_t ElementsIn(Bytes most) {
  const uint64_t elements = std::min(kMostElements, most / kOfElement);
  return std::max(elements / kernels::kChunkElements, uint64_t{1}) * kernels::kChunkElements;
}

/// The least seconds of some rounds, after one that touches the memory.
double Least(const std::function<void()>& work) {
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round <= kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (round > 0) least = std::min(least, took.count());
  }
  return least;
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
  HostSpeed speed;
  speed.update_element =
      Least([&] {
        for (uint64_t begin = 0; begin < count; begin += kernels::kChunkElements) {
          kernels::OptimizerTile planes =
              zero::PlanesOf(layout, tile, weight.data(), record.data(), gradient.data(), begin,
                             kernels::kChunkElements);
          planes.rounding = scalars.RoundingOf(layout.tile(tile));
          kernels::Update(scalars.Of(layout.tile(tile)), planes);
        }
      }) /
      elements;
  std::vector<double> sums(count / kBlockElements);
  speed.norm_element =
      Least([&] { kernels::BlockSums(gradient.data(), layout.GradientDType(tile), count, sums); }) /
      elements;
  const uint64_t copied = std::min(weight.size().value, record.size().value);
  speed.copy_byte = Least([&] { std::memcpy(weight.data(), record.data(), copied); }) /
                    static_cast<double>(copied);
  return speed;
}

}  // namespace penstock::train
