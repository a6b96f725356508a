// Block sums and figures of gradients and updates that are on the device, and their way to the
// host.
//
// What is launched is counted in modules, not in tiles: the tensor parts of a module's tiles are
// tables in device memory, made once (kernels/state/state_parts.h), and each pass over a module is
// one kernel for each dtype of gradients or each group of tensors. What a pass leaves of a module
// lies together, and is copied to the host at once. There is room for one step's gradients and one
// update.
//
// Threads: one; what it enqueues is done when the streams are.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "device/device.h"
#include "kernels/state/state_operators.h"
#include "offload/layout.h"
#include "zero/exchange/gradient_sums.h"
#include "zero/gradient_norm.h"
#include "zero/plan/gradient_batches.h"
#include "zero/states/tensor_figures.h"
#include "zero/states/trust_sums.h"
#include "zero/update_scalars.h"

namespace penstock::zero {

class DeviceFigures {
 public:
  /// Returns a trained tile's planes and gradient on the device, with the rounding's first element.
  using PlanesOfTile = std::function<kernels::OptimizerTile(offload::TileId tile)>;

  /// What resident training has of figures and tables on the device, and as much on the host.
  static Bytes Need(const offload::ShardLayout& layout);
  /// The layout, and what lies where `planes_of` says, outlive it. Errors: kBudget; kOutOfMemory;
  /// of the stream, on which the tables go to the device.
  static Result<std::unique_ptr<DeviceFigures>> Create(const offload::ShardLayout& layout,
                                                       device::Device& device,
                                                       device::Stream& stream,
                                                       const PlanesOfTile& planes_of);

  /// Enqueues the rounding of a module's gradient, from the sums of this rank's share, and the pass
  /// over it; tells `norm` (which outlives them) when its block sums are there. Returns the number
  /// of its tiles.
  size_t RoundAndSum(const FinishedSums& finished, offload::ModuleId id, GradientNorm& norm);
  /// The same for a gradient that is rounded already.
  size_t Sum(device::Stream& stream, kernels::StateOperators& operators, offload::ModuleId id,
             GradientNorm& norm);
  /// Enqueues what the updates of a step share; to be called before them.
  void BeginUpdate(device::Stream& stream, const UpdateScalars& scalars);
  /// Enqueues the update of a module. Returns the number of its tiles.
  size_t Update(device::Stream& stream, kernels::StateOperators& operators, offload::ModuleId id,
                const UpdateScalars& scalars);
  /// Enqueues the first pass over a module, for rules that take two; takes the place of the figures
  /// of the update. TakeTrust reads what the passes over all modules have left, after the stream
  /// has ended.
  void SumForTrust(device::Stream& stream, kernels::StateOperators& operators, offload::ModuleId id,
                   const UpdateScalars& scalars);
  void TakeTrust(TrustBlocks& trust) const;
  /// Returns the figures of this rank's share: of the gradients since the last call, and of the
  /// update, if there was one. The streams of both have been waited for.
  StepFigures Take();
  /// Returns those of the last update, whose stream has been waited for; zeros if there was none.
  std::vector<kernels::WeightFigures> LastUpdate();
  /// Finds, on the device, the first trained tile whose weights are not all finite; the stream has
  /// ended then. Takes the place of the block sums of gradients. Errors: of the stream.
  Result<std::optional<offload::TileId>> FirstNotFinite(device::Stream& stream,
                                                        kernels::StateOperators& operators);

 private:
  /// Where what belongs to a tile lies.
  struct Place {
    uint64_t blocks = 0;   ///< its first block, in the figures of its module
    uint64_t ends = 0;     ///< its first part without whole blocks, likewise
    uint64_t updates = 0;  ///< its first block of a part, in those of all tiles
  };
  /// Trained tiles of a module whose gradients have one dtype.
  struct Run {
    GradientBatch batch;
    std::byte* gradient = nullptr;
    uint64_t figures = 0;  ///< its first block, in the figures of the module; behind them its ends
    uint64_t first_end = 0;  ///< in the table of ends
    uint64_t end_count = 0;
  };
  /// Trained tiles of a module whose weights lie together and have one dtype.
  struct WeightRun {
    offload::IdRange<offload::TileId> tiles;
    const std::byte* weights = nullptr;
    DType dtype = DType::kFloat32;
    uint64_t elements = 0;
  };
  /// Trained tiles of a module that belong to one group.
  struct Group {
    offload::IdRange<offload::TileId> tiles;
    kernels::StateParts parts;
    uint64_t updates = 0;  ///< its first block of a part, in those of all tiles
  };
  struct Module {
    std::vector<Run> runs;
    std::vector<Group> groups;
    std::vector<WeightRun> weights;
    uint64_t figures_before = 0;  ///< figures of earlier modules: blocks and ends
    uint64_t figures = 0;
    uint64_t updates_before = 0;  ///< blocks of the parts of the modules before it
    uint64_t updates = 0;
  };
  /// Everything, in either memory.
  struct Memory {
    std::byte* figures;               ///< of each module: sums, magnitudes and counts
    kernels::WeightFigures* updates;  ///< or what a first pass leaves
    kernels::StatePart* parts;
    kernels::GradientEnd* ends;
    float* step_sizes;  ///< of each tensor
    uint32_t* finite;   ///< for each tile: whether the run that it begins is finite
  };

  explicit DeviceFigures(const offload::ShardLayout& layout);
  void AddModule(offload::ModuleId id);
  Run MakeRun(const GradientBatch& batch, Module& module);
  void AddGroups(offload::ModuleId id, Module& module);
  void FillTables(const PlanesOfTile& planes_of);
  void FillGroup(const PlanesOfTile& planes_of, Group& group, uint64_t first_part);
  void AddWeights(const kernels::OptimizerTile& planes, offload::TileId tile, Module& module) const;
  Bytes need() const;
  Memory In(std::byte* memory) const;
  kernels::DeviceBlockFigures FiguresIn(std::byte* memory, const Module& module,
                                        uint64_t first) const;
  kernels::BlockFigures OnHost(const Module& module, uint64_t first, uint64_t count) const;
  const Module& Of(offload::ModuleId id) const { return modules_[offload::Index(id)]; }
  template <typename OfBlock>
  void FetchUpdates(device::Stream& stream, const Module& module) const;
  void GiveToNorm(const Module& module, GradientNorm& norm) const;
  Result<std::optional<offload::TileId>> FirstNotFiniteOf(device::Stream& stream,
                                                          const Module& module,
                                                          const WeightRun& run,
                                                          uint64_t block) const;
  void TakeUpdate(offload::TileId tile);

  const offload::ShardLayout& layout_;
  TensorFigures figures_;
  std::vector<Place> places_;  ///< of each tile
  std::vector<Module> modules_;
  std::vector<kernels::GradientEnd> ends_;
  uint64_t all_figures_ = 0;
  uint64_t all_updates_ = 0;
  uint64_t all_parts_ = 0;
  device::DeviceBuffer device_;
  device::HostBuffer host_;
  bool updated_ = false;  ///< since the last Take
};

}  // namespace penstock::zero
