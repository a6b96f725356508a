#include "zero/states/committed_state.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/files.h"
#include "offload/uuid.h"
#include "zero/states/source_tiles.h"
#include "zero/states/tile_planes.h"

namespace penstock::zero {
namespace {

using offload::StateReader;
using offload::TileId;
using offload::WholeState;

/// On offload::WholeState: tensors out of tiles, one tile in memory.
class TileWiseState : public CommittedState {
 public:
  explicit TileWiseState(WholeState files)
      : files_(std::move(files)), state_(StateOf(files_.commit())) {}

  const TrainState& train_state() const override { return state_; }
  offload::CommitName commit() const override { return files_.name(); }
  std::string uuid() const override { return offload::ToString(files_.uuid()); }
  const offload::ModelLayout& model() const override { return files_.model(); }
  uint32_t world_size() const override { return files_.world_size(); }
  const offload::ShardLayout& shard(uint32_t rank) const override {
    return files_.rank(rank).layout();
  }

  std::vector<offload::CommitName> commits() const override { return files_.commits(); }
  Status Use(const offload::CommitName& name) override {
    loaded_.reset();
    PENSTOCK_TRY(files_.Use(name));
    state_ = StateOf(files_.commit());
    return {};
  }
  Result<std::vector<std::string>> DamagedTiles(const offload::CheckProgress& progress,
                                                uint32_t part, uint32_t of) const override {
    return files_.DamagedTiles(progress, part, of);
  }
  std::string notice() const override { return files_.notice(); }
  bool durable() const override { return files_.slots() == 2; }
  Result<std::vector<std::string>> CallerPaths() const override {
    std::vector<std::string> paths;
    for (uint32_t rank = 0; rank < world_size(); ++rank) {
      PENSTOCK_ASSIGN(const auto file, files_.rank(rank).caller_file());
      if (file) paths.push_back(files_.rank(rank).caller_path());
    }
    return paths;
  }
  Result<std::string> ReadCaller() const override { return files_.rank(0).ReadCaller(); }
  std::vector<double> Shares() const override { return files_.Shares(); }

  Status ReadState(StateKind kind, ModuleId module, size_t tensor, uint64_t begin,
                   std::span<float> values) override {
    PENSTOCK_TRY(CheckKept(model(), module, tensor, kind));
    uint64_t at = model().module(module).tensors[tensor].offset + begin;
    while (!values.empty()) {
      const RankTile found = TileAt(module, at);
      PENSTOCK_TRY(Load(found));
      const offload::TileLayout& place = shard(found.rank).tile(found.tile);
      const uint64_t inside = at - place.begin;
      const uint64_t count = std::min<uint64_t>(values.size(), place.elements - inside);
      LoadState(kind, shard(found.rank), found.tile, bytes_.weight.data(), bytes_.record.data(),
                inside, values.first(count));
      values = values.subspan(count);
      at += count;
    }
    return {};
  }

  uint64_t ReadableAtOnce(ModuleId module, size_t tensor, uint64_t begin) const override {
    const offload::TensorLayout& whole = model().module(module).tensors[tensor];
    const RankTile found = TileAt(module, whole.offset + begin);
    const offload::TileLayout& tile = shard(found.rank).tile(found.tile);
    return std::min(tile.begin + tile.elements - whole.offset, whole.elements) - begin;
  }

  Result<std::unique_ptr<SourceTiles>> OpenTiles(int threads) const override {
    return SourceTiles::Open(files_, threads);
  }

  Result<CommitCheck> Check(const offload::CheckProgress& progress) override {
    Bytes total;
    for (uint32_t rank = 0; rank < world_size(); ++rank) {
      total += shard(rank).weight_bytes() + shard(rank).record_bytes();
    }
    CommitCheck whole;
    ValueCheck values(model());
    for (uint32_t rank = 0; rank < world_size(); ++rank) {
      const auto of_all = [&](Bytes done, Bytes) { return progress(whole.read + done, total); };
      const auto look = [&](TileId tile, auto weight, auto record) {
        values.AddTile(shard(rank), tile, weight, record);
      };
      PENSTOCK_ASSIGN(offload::StateCheck check,
                      offload::CheckState(files_.rank(rank), of_all, look));
      whole.damages.insert(whole.damages.end(), check.damages.begin(), check.damages.end());
      whole.in_heads += check.in_heads;
      whole.read += check.read;
    }
    whole.values = values.Faults();
    return whole;
  }

 private:
  RankTile TileAt(ModuleId module, uint64_t element) const {
    const uint32_t rank = model().RankAt(module, element, world_size());
    return {rank, shard(rank).TileAt(module, element)};
  }

  Status Load(const RankTile& tile) {
    if (loaded_ == tile) return {};
    loaded_.reset();
    PENSTOCK_TRY(files_.rank(tile.rank).ReadTile(tile.tile, bytes_));
    loaded_ = tile;
    return {};
  }

  WholeState files_;
  TrainState state_;
  StateReader::TileBytes bytes_;
  std::optional<RankTile> loaded_;
};

/// Refuses what the format can hold and nothing here reads yet: a model without tensors, states
/// with scales. Errors: kUnavailable.
Status CheckReadable(const offload::ModelLayout& model, const std::string& path) {
  const auto has_scales = [](const offload::GroupLayout& group) {
    return std::ranges::any_of(group.planes.all(), [](const offload::Plane& plane) {
      return plane.encoding == Encoding::kBlockwise8;
    });
  };
  if (model.elements() != 0 && std::ranges::none_of(model.groups, has_scales)) return {};
  return MakeError(ErrorCode::kUnavailable,
                   "state file {} holds no tensors, or states that this version of penstock does "
                   "not read",
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

Status CheckKept(const offload::ModelLayout& model, ModuleId module, size_t tensor,
                 StateKind kind) {
  const offload::TensorLayout& whole = model.module(module).tensors[tensor];
  const offload::GroupLayout& group = model.group(whole.group);
  const std::vector<StateKind> kept = StatesOf(group);
  if (std::ranges::find(kept, kind) != kept.end()) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "tensor {} has no such state: its group \"{}\" does not keep it", whole.name,
                   group.name);
}

Result<std::unique_ptr<CommittedState>> CommittedState::Open(const offload::RankPaths& paths,
                                                             offload::StateLock lock) {
  PENSTOCK_ASSIGN(WholeState files, WholeState::Open(paths, lock));
  PENSTOCK_TRY(CheckReadable(files.model(), paths.front().front()));
  return std::unique_ptr<CommittedState>(std::make_unique<TileWiseState>(std::move(files)));
}

Result<std::unique_ptr<CommittedState>> CommittedState::Open(
    const std::vector<std::string>& state_paths, bool exclusive) {
  using offload::StateLock;
  return Open(offload::RankPaths{state_paths},
              exclusive ? StateLock::kExclusive : StateLock::kShared);
}

bool FitsInPlace(const CommittedState& state, const offload::ShardLayout& layout, bool durable,
                 const std::vector<std::string>& paths, const std::vector<std::string>& folders) {
  const auto holds = [](const std::string& folder, const std::string& file) {
    std::error_code ignored;
    return std::filesystem::equivalent(std::filesystem::path(file).parent_path(), folder, ignored);
  };
  return state.durable() == durable && state.world_size() == layout.world_size &&
         state.shard(layout.rank) == layout && std::ranges::equal(folders, paths, holds) &&
         std::ranges::none_of(paths, HasOtherName);
}

}  // namespace penstock::zero
