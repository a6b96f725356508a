#include "zero/plan/partitioner.h"

#include <algorithm>

#include "base/check.h"

namespace penstock::zero {
namespace {

using offload::Index;
using offload::ShardLayout;

uint64_t TilesOf(const ModelSpec& model, uint64_t tile_elements) {
  uint64_t tiles = 0;
  for (const ModuleSpec& module : model.modules) {
    std::vector<uint64_t> elements(model.groups.size(), 0);
    for (const TensorSpec& tensor : module.tensors) {
      uint64_t& of_group = elements[Index(tensor.group)];
      of_group = SaturatingAdd(of_group, tensor.elements());
    }
    for (const uint64_t of_group : elements) {
      tiles += of_group / tile_elements + (of_group % tile_elements == 0 ? 0 : 1);
    }
  }
  return tiles;
}

}  // namespace

std::vector<GroupSpec> DecayGroupSpecs() {
  return {{.name = "weight decay"}, {.name = "no weight decay", .weight_decay = false}};
}

Status CheckTileCount(const ModelSpec& model, const config::Config& config) {
  const uint64_t tiles = TilesOf(model, config.tile_elements);
  if (tiles <= kMaxTiles) return {};
  uint64_t enough = config.tile_elements;
  while (TilesOf(model, enough) > kMaxTiles) enough *= 2;
  return MakeError(ErrorCode::kBudget,
                   "penstock.tile_elements: with {} elements in a tile the model has {} tiles, and "
                   "{} is the limit; give {} (and as much to sub_group_size, where it is set)",
                   config.tile_elements, tiles, kMaxTiles, enough);
}

offload::ModelLayout MakeModelLayout(const ModelSpec& model, DType dtype,
                                     const offload::Moments& moments) {
  offload::ModelLayout layout;
  for (const GroupSpec& group : model.groups) {
    const DType weight = group.weight.value_or(dtype);
    layout.groups.push_back({.name = group.name,
                             .planes = group.frozen ? offload::MakeFrozenPlanes(weight)
                                                    : offload::MakePlanes(weight, moments),
                             .frozen = group.frozen,
                             .parameter_group = static_cast<uint32_t>(layout.groups.size())});
  }
  for (const ModuleSpec& spec : model.modules) {
    std::vector<offload::TensorShape> tensors;
    for (const TensorSpec& tensor : spec.tensors) {
      PENSTOCK_CHECK(Index(tensor.group) < layout.groups.size());
      tensors.push_back({.name = tensor.name, .shape = tensor.shape, .group = tensor.group});
    }
    layout.modules.push_back(offload::MakeModule(spec.name, tensors));
    for (const auto& tensor : layout.modules.back().tensors) layout.parameters += tensor.elements;
  }
  return layout;
}

ShardLayout MakeLayout(const ModelSpec& model, DType dtype, uint64_t tile_elements,
                       const offload::Moments& moments, const comm::World& world) {
  return offload::MakeShard(MakeModelLayout(model, dtype, moments), tile_elements, world.size,
                            world.rank);
}

ShardLayout MakeLayout(const ModelSpec& model, const config::Config& config,
                       const comm::World& world) {
  const kernels::RuleMoments of_rule = kernels::MomentsOf(config.optimizer.hyper);
  return MakeLayout(model, config.dtype, config.tile_elements,
                    {.exp_avg = of_rule.exp_avg,
                     .exp_avg_sq = of_rule.exp_avg_sq,
                     .dtype = config.optimizer.moments},
                    world);
}

}  // namespace penstock::zero
