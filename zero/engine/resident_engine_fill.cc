// ResidentEngine: how states come to the device before the first step. Several threads make or read
// tiles in blocks of host memory; the stream is fed by one at a time.
#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "base/for_each_index.h"
#include "base/mutex.h"
#include "zero/engine/resident_engine.h"
#include "zero/states/start_team.h"

namespace penstock::zero {

using offload::Index;
using offload::TileId;

/// The blocks that tiles pass through, and the turns of the threads that feed the stream.
class ResidentEngine::Passage {
 public:
  explicit Passage(ResidentEngine& engine) : engine_(engine), free_(engine.blocks_) {}

  /// Has `make` write a tile into a block, and sends it to the device. By no more threads at a time
  /// than there are blocks.
  Status Send(TileId tile, const std::function<Status(const TileBlock& parts)>& make)
      EXCLUDES(mutex_) {
    TileBlock block;
    {
      MutexLock lock(mutex_);
      block = free_.back();
      free_.pop_back();
    }
    Status sent = SendThrough(block, tile, make);
    MutexLock lock(mutex_);
    free_.push_back(block);
    return sent;
  }

 private:
  Status SendThrough(const TileBlock& block, TileId tile,
                     const std::function<Status(const TileBlock& parts)>& make) EXCLUDES(mutex_) {
    const TileBlock parts = block.Of(engine_.layout_, tile);
    PENSTOCK_TRY(make(parts));
    device::Event sent;
    {
      MutexLock lock(mutex_);
      device::Stream& stream = *engine_.compute_;
      stream.CopyToDevice(engine_.WeightOf(tile), parts.weight.data(), Bytes{parts.weight.size()});
      stream.CopyToDevice(engine_.RecordOf(tile), parts.record.data(), Bytes{parts.record.size()});
      sent = stream.Record();
    }
    sent.Wait();
    return {};
  }

  ResidentEngine& engine_;
  Mutex mutex_;
  std::vector<TileBlock> free_ GUARDED_BY(mutex_);
};

Status ResidentEngine::SendTiles(
    int threads, const std::function<Status(TileId tile, const TileBlock& parts)>& make) {
  if (layout_.tiles.empty()) return {};
  Passage passage(*this);
  const int team = std::min(threads, static_cast<int>(blocks_.size()));
  PENSTOCK_TRY(ForEachIndex(layout_.tiles.size(), team, [&](size_t i) {
    const TileId tile{static_cast<uint32_t>(i)};
    return passage.Send(tile, [&](const TileBlock& parts) { return make(tile, parts); });
  }));
  return compute_->Synchronize();
}

Status ResidentEngine::FillTiles(const TileFill& fill) {
  PENSTOCK_TRY(SendTiles(StartThreads(), [&](TileId tile, const TileBlock& parts) {
    return FillParts(tile, parts, fill);
  }));
  return EndFill();
}

Status ResidentEngine::FillTile(TileId tile, const TileFill& fill) {
  Passage passage(*this);
  PENSTOCK_TRY(
      passage.Send(tile, [&](const TileBlock& parts) { return FillParts(tile, parts, fill); }));
  return compute_->Synchronize();
}

Status ResidentEngine::FillParts(TileId tile, const TileBlock& parts, const TileFill& fill) {
  std::memset(parts.weight.data(), 0, parts.weight.size());
  std::memset(parts.record.data(), 0, parts.record.size());
  return fill(tile, parts.weight, parts.record);
}

Status ResidentEngine::EndFill() {
  io_.init_bytes = io_.written();
  return {};
}

Result<TrainState> ResidentEngine::Adopt() {
  if (!io_.adopted) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "there is no commit to resume from; name its files in EngineOptions::adopt");
  }
  committed_ = io_.adopted->tiles;
  version_ = offload::VersionOf(layout_, *io_.adopted);
  committed_version_ = version_;
  PENSTOCK_TRY(SendTiles(StartThreads(), [&](TileId tile, const TileBlock& parts) {
    return ReadTile(tile, committed_[Index(tile)], parts);
  }));
  io_.EndSetup();
  return StateOf(*io_.adopted);
}

Status ResidentEngine::ReadTile(TileId tile, const offload::CommittedTile& committed,
                                const TileBlock& parts) {
  const auto slot = static_cast<int>(committed.slot);
  std::vector<aio::Ticket> tickets;
  const auto submit = [&](offload::Part part, std::span<std::byte> buffer) {
    if (buffer.empty()) return;
    tickets.push_back(io_.file->Submit({.part = part,
                                        .tile = tile,
                                        .slot = slot,
                                        .operation = aio::Operation::kRead,
                                        .buffer = buffer,
                                        .priority = aio::Priority::kStateRead}));
  };
  submit(offload::Part::kWeight, parts.weight);
  submit(offload::Part::kRecord, parts.record);
  PENSTOCK_TRY(aio::WaitAll(tickets));
  const offload::TileChecksums found = offload::ChecksumsOf(
      io_.file->uuid(), layout_, tile, committed.version, parts.weight, parts.record);
  if (found == committed.checksums) return {};
  const bool weight = found.weight != committed.checksums.weight;
  const offload::Part part = weight ? offload::Part::kWeight : offload::Part::kRecord;
  return offload::DamagedPart(layout_, part, tile, committed.version,
                              io_.file->Where(part, tile, slot));
}

}  // namespace penstock::zero
