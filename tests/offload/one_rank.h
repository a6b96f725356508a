// A rank of several with files of its own, written step by step without a job, for tests.
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mapping.h"
#include "offload/state_file.h"
#include "offload/state_names.h"

namespace penstock::offload {

class OneRank {
 public:
  /// Its file lies in `folder`.
  OneRank(const Uuid& uuid, ShardLayout layout, std::string folder)
      : uuid_(uuid), layout_(std::move(layout)), folder_(std::move(folder)) {}

  const ShardLayout& layout() const { return layout_; }
  std::vector<std::string> paths() const { return StatePathsIn({folder_}, uuid_, layout_.rank); }
  StateFile& file() { return *file_; }

  Status Create(bool durable = true) {
    aio::Engine* const engines[] = {MakeEngine({})};
    PENSTOCK_ASSIGN(
        file_,
        StateFile::Create(
            layout_,
            {.folders = {folder_}, .durable = durable, .uuid = uuid_, .require_direct = false},
            engines));
    return {};
  }

  /// Opens the files again, on a drive with these faults.
  Status Open(const std::optional<CommitName>& at,
              const std::optional<aio::FaultPlan>& faults = {}) {
    aio::Engine* const engines[] = {MakeEngine(faults)};
    PENSTOCK_ASSIGN(OpenedState opened, StateFile::Open(paths(), layout_, false, engines, at));
    file_ = std::move(opened.file);
    version_ = VersionOf(layout_, opened.commit);
    return {};
  }

  /// Writes the next version of every tile, filled with `value`; a frozen tile's once.
  Status Write(uint8_t value) {
    PENSTOCK_TRY(file_->PrepareWrites());
    ++version_;
    written_.clear();
    for (const TileId tile : layout_.Tiles()) {
      const auto slot = static_cast<uint32_t>(file_->WriteSlot(tile));
      PENSTOCK_ASSIGN(const Mapping bytes,
                      Mapping::Create(layout_.WeightBytes(tile) + layout_.RecordBytes(tile)));
      std::memset(bytes.data(), value, bytes.size().value);
      const std::span<std::byte> weight(bytes.data(), layout_.WeightBytes(tile).value);
      const std::span<std::byte> record(weight.data() + weight.size(),
                                        layout_.RecordBytes(tile).value);
      PENSTOCK_TRY(WritePart(tile, Part::kWeight, slot, weight));
      PENSTOCK_TRY(WritePart(tile, Part::kRecord, slot, record));
      written_.push_back({.version = version_,
                          .checksums = ChecksumsOf(uuid_, layout_, tile, version_, weight, record),
                          .slot = slot});
    }
    return {};
  }

  /// Commits what was written last.
  Status Commit(const CommitName& name, std::string json = "{}", uint64_t seed = 0) {
    return file_->Commit({.head = {.step = name.step, .optimizer_steps = name.step, .seed = seed},
                          .session = name.session,
                          .tiles = written_,
                          .json = std::move(json)});
  }

  /// Closes the files; of a drive that forgets, what no sync covered is in part lost.
  void End() {
    file_.reset();
    engine_.reset();
  }

 private:
  aio::Engine* MakeEngine(const std::optional<aio::FaultPlan>& faults) {
    engine_ = aio::CreateEngine(
                  {.kind = aio::EngineKind::kThreads, .block_size = 64_KiB, .faults = faults})
                  .value();
    return engine_.get();
  }

  Status WritePart(TileId tile, Part part, uint32_t slot, std::span<std::byte> bytes) {
    return file_
        ->Submit({.part = part,
                  .tile = tile,
                  .slot = static_cast<int>(slot),
                  .operation = aio::Operation::kWrite,
                  .buffer = bytes})
        .Wait();
  }

  const Uuid uuid_;
  const ShardLayout layout_;
  const std::string folder_;
  std::unique_ptr<aio::Engine> engine_;
  std::unique_ptr<StateFile> file_;
  uint64_t version_ = 0;
  std::vector<CommittedTile> written_;
};

}  // namespace penstock::offload
