#include "zero/state_io.h"

#include <algorithm>

#include "zero/tile_planes.h"

namespace penstock::zero {
namespace {

/// Weights are made or read in pieces of this many elements.
constexpr uint64_t kPieceElements = 64 * 1024;

}  // namespace

Result<StateIo> StateIo::Create(const EngineOptions& options, const offload::Layout& layout) {
  const Config& config = options.config;
  StateIo io;
  std::string notice;
  PENSTOCK_ASSIGN(io.engine, aio::CreateEngine(config.aio, &notice));
  if (!notice.empty()) io.notices.push_back(notice);
  const bool on_drive =
      config.parameter_home == Tier::kNvme || config.optimizer_home == Tier::kNvme;
  PENSTOCK_ASSIGN(io.file,
                  offload::StateFile::Create(layout,
                                             {.folder = options.state_folder,
                                              .durable = config.durable,
                                              .require_direct = on_drive,
                                              .simulated = config.aio.simulate.has_value()},
                                             *io.engine));
  io.uuid = offload::ToString(io.file->uuid());
  if (config.aio.simulate) {
    io.notices.emplace_back("the drive is simulated in memory: commits end with the process");
  }
  io.init_bytes = io.written();
  return io;
}

Status StateIo::RegisterBuffers(std::span<std::byte> memory) {
  PENSTOCK_ASSIGN(std::string line, engine->RegisterBuffers({&memory, 1}));
  if (!line.empty()) notices.push_back(std::move(line));
  return {};
}

EngineCounters StateIo::Counters() const {
  const aio::EngineStats stats = engine->stats();
  return {.nvme_read_bytes = stats.read_bytes,
          .nvme_write_bytes = stats.write_bytes - init_bytes - commit_bytes,
          .nvme_init_bytes = init_bytes,
          .nvme_commit_bytes = commit_bytes};
}

offload::CommitRecord MakeRecord(const TrainState& state) {
  return {.step = state.step,
          .optimizer_steps = state.optimizer_steps,
          .skipped_in_a_row = state.skipped_in_a_row,
          .seed = state.seed,
          .compute_threads = state.compute_threads,
          .json = state.run_json};
}

TrainState StateOf(const offload::CommitRecord& record) {
  return {.step = record.step,
          .optimizer_steps = record.optimizer_steps,
          .skipped_in_a_row = record.skipped_in_a_row,
          .seed = record.seed,
          .compute_threads = record.compute_threads,
          .run_json = record.json};
}

Status FillTileFrom(const TensorSource& source, const offload::Layout& layout, offload::TileId tile,
                    std::span<std::byte> weight, std::span<std::byte> record) {
  const offload::TileLayout& place = layout.tile(tile);
  const offload::ModuleLayout& module = layout.module(place.module);
  std::vector<float> values;
  for (size_t i = 0; i < module.tensors.size(); ++i) {
    const offload::TensorLayout& tensor = module.tensors[i];
    uint64_t at = std::max(tensor.offset, place.begin);
    const uint64_t end = std::min(tensor.offset + tensor.elements, place.begin + place.elements);
    while (at < end) {
      values.resize(std::min(kPieceElements, end - at));
      PENSTOCK_TRY(source(place.module, i, at - tensor.offset, values));
      StoreMaster(layout.dtype, place.elements, values, at - place.begin, weight.data(),
                  record.data());
      at += values.size();
    }
  }
  return {};
}

}  // namespace penstock::zero
