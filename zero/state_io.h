// What both engines share around the state file: the I/O engine, the file, counters and commits.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aio/aio.h"
#include "base/result.h"
#include "offload/state_file.h"
#include "zero/engine.h"

namespace penstock::zero {

struct StateIo {
  std::unique_ptr<aio::Engine> engine;
  std::unique_ptr<offload::StateFile> file;
  std::string uuid;
  std::vector<std::string> notices;
  uint64_t init_bytes = 0;
  uint64_t commit_bytes = 0;

  /// Chooses the I/O engine and creates the state file. Errors: of both.
  static Result<StateIo> Create(const EngineOptions& options, const offload::Layout& layout);
  /// Says once in what memory buffers will lie, which must outlive this. What became of it is
  /// among the notices. Errors: those of aio::Engine::RegisterBuffers.
  Status RegisterBuffers(std::span<std::byte> memory);

  /// Bytes written so far, by all.
  uint64_t written() const { return engine->stats().write_bytes; }
  /// The bytes of the step loop: everything but initialisation and commits.
  EngineCounters Counters() const;
};

offload::CommitRecord MakeRecord(const TrainState& state);
TrainState StateOf(const offload::CommitRecord& record);

/// Writes elements of a tile, from the tensors that overlap it, into its parts (padding stays
/// zero).
Status FillTileFrom(const TensorSource& source, const offload::Layout& layout, offload::TileId tile,
                    std::span<std::byte> weight, std::span<std::byte> record);

}  // namespace penstock::zero
