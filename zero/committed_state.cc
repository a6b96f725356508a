#include "zero/committed_state.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "offload/state_reader.h"
#include "offload/uuid.h"
#include "zero/state_io.h"
#include "zero/tile_planes.h"

namespace penstock::zero {
namespace {

using offload::StateReader;
using offload::TileId;

/// On offload::StateReader: tensors out of tiles, one tile in memory.
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
      const std::vector<StateKind> kept = StatesOf(layout().group(tile));
      if (std::ranges::find(kept, kind) == kept.end()) {
        return MakeError(ErrorCode::kInvalidArgument,
                         "tensor {} has no such state: its group \"{}\" does not keep it",
                         layout().module(module).tensors[tensor].name, layout().group(tile).name);
      }
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

/// Refuses what the format can hold and nothing here reads yet: a share of several ranks', no tile
/// at all, states with scales. Errors: kUnavailable.
Status CheckReadable(const offload::ShardLayout& layout, const std::string& path) {
  const auto has_scales = [](const offload::GroupLayout& group) {
    return std::ranges::any_of(group.planes.all(), [](const offload::Plane& plane) {
      return plane.encoding == Encoding::kBlockwise8;
    });
  };
  if (layout.world_size == 1 && !layout.tiles.empty() &&
      std::ranges::none_of(layout.model.groups, has_scales)) {
    return {};
  }
  return MakeError(ErrorCode::kUnavailable,
                   "state file {} is one rank's of several, or holds states that this version of "
                   "penstock does not read",
                   path);
}

}  // namespace

std::vector<StateKind> StatesOf(const offload::GroupLayout& group) {
  std::vector<StateKind> states = {StateKind::kMaster};
  const auto add = [&](offload::PlaneRole role, StateKind kind) {
    if (group.planes.Find(role) != nullptr) states.push_back(kind);
  };
  add(offload::PlaneRole::kExpAvg, StateKind::kExpAvg);
  add(offload::PlaneRole::kExpAvgSq, StateKind::kExpAvgSq);
  return states;
}

Result<std::unique_ptr<CommittedState>> CommittedState::Open(
    const std::vector<std::string>& state_paths, bool exclusive) {
  using offload::StateLock;
  PENSTOCK_ASSIGN(
      std::unique_ptr<StateReader> reader,
      StateReader::Open(state_paths, exclusive ? StateLock::kExclusive : StateLock::kShared));
  PENSTOCK_TRY(CheckReadable(reader->layout(), state_paths.front()));
  return std::unique_ptr<CommittedState>(std::make_unique<TileWiseState>(std::move(reader)));
}

}  // namespace penstock::zero
