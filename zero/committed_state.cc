// CommittedState on offload::StateReader: tensors out of tiles, one tile in memory.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "offload/state_file.h"
#include "offload/state_reader.h"
#include "zero/engine.h"
#include "zero/state_io.h"
#include "zero/tile_planes.h"

namespace penstock::zero {
namespace {

using offload::StateReader;
using offload::TileId;

class TileWiseState : public CommittedState {
 public:
  explicit TileWiseState(std::unique_ptr<StateReader> reader)
      : reader_(std::move(reader)), state_(StateOf(reader_->commit())) {}

  const TrainState& train_state() const override { return state_; }
  std::string uuid() const override { return offload::ToString(reader_->header().uuid); }
  const offload::ShardLayout& layout() const override { return reader_->layout(); }

  std::string notice() const override { return reader_->notice(); }
  bool durable() const override { return reader_->header().geometry.slots == 2; }
  std::vector<double> Shares() const override { return reader_->Shares(); }

  Status ReadState(StateKind kind, ModuleId module, size_t tensor, uint64_t begin,
                   std::span<float> values) override {
    uint64_t at = layout().module(module).tensors[tensor].offset + begin;
    while (!values.empty()) {
      const TileId tile = layout().TileAt(module, at);
      PENSTOCK_TRY(Load(tile));
      const offload::TileLayout& place = layout().tile(tile);
      const uint64_t inside = at - place.begin;
      const uint64_t count = std::min<uint64_t>(values.size(), place.elements - inside);
      LoadState(kind, layout(), tile, bytes_.weight.data(), bytes_.record.data(), inside,
                values.first(count));
      values = values.subspan(count);
      at += count;
    }
    return {};
  }

  Result<offload::StateCheck> Check(const offload::CheckProgress& progress) override {
    return offload::CheckState(*reader_, progress);
  }

 private:
  Status Load(TileId tile) {
    if (loaded_ == tile) return {};
    loaded_.reset();
    PENSTOCK_TRY(reader_->ReadTile(tile, bytes_));
    loaded_ = tile;
    return {};
  }

  std::unique_ptr<StateReader> reader_;
  TrainState state_;
  StateReader::TileBytes bytes_;
  std::optional<TileId> loaded_;
};

}  // namespace

Result<std::unique_ptr<CommittedState>> CommittedState::Open(
    const std::vector<std::string>& state_paths, bool exclusive) {
  using offload::StateLock;
  PENSTOCK_ASSIGN(
      std::unique_ptr<StateReader> reader,
      StateReader::Open(state_paths, exclusive ? StateLock::kExclusive : StateLock::kShared));
  return std::unique_ptr<CommittedState>(std::make_unique<TileWiseState>(std::move(reader)));
}

}  // namespace penstock::zero
