// ResidentEngine: for a caller that computes by itself and gives whole gradients.
#include <memory>
#include <utility>

#include "base/check.h"
#include "zero/engine/resident_engine.h"
#include "zero/plan/partitioner.h"

namespace penstock::zero {

using offload::TileId;

Result<std::unique_ptr<ResidentEngine>> ResidentEngine::CreateForCaller(
    EngineOptions options, device::Device& device, kernels::StateOperators& operators) {
  PENSTOCK_CHECK(options.model.gives_gradients && options.communicator == nullptr);
  offload::ShardLayout layout = MakeLayout(options.model, options.config, options.world());
  std::unique_ptr<ResidentEngine> engine(
      new ResidentEngine(std::move(options), std::move(layout), operators));
  PENSTOCK_TRY(engine->Build(device));
  // What lies between tensors is never given, and counts in block sums.
  for (Module& module : engine->modules_) {
    engine->compute_->Zero(module.gradients.data(), module.gradients.size());
  }
  PENSTOCK_TRY(engine->compute_->Synchronize());
  return engine;
}

void ResidentEngine::GradientsArrived(ModuleId module) {
  sent_ += device_figures_->Sum(*compute_, operators_, module, norm_);
}

Status ResidentEngine::ReadTile(TileId tile, const TileReader& read) {
  if (commit_) static_cast<void>(commit_->Finish());  // which uses the same block
  const TileBlock parts = HostPartsOf(tile);
  compute_->CopyToHost(parts.weight.data(), WeightOf(tile), Bytes{parts.weight.size()});
  compute_->CopyToHost(parts.record.data(), RecordOf(tile), Bytes{parts.record.size()});
  PENSTOCK_TRY(compute_->Synchronize());
  return read(parts.weight, parts.record);
}

}  // namespace penstock::zero
