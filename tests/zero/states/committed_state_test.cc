// What a committed state refuses to be read as.
#include "zero/states/committed_state.h"

#include <gmock/gmock.h>

#include "offload/state_file.h"
#include "tests/offload/support.h"

namespace penstock::zero {
namespace {

using offload::MakePlane;
using offload::ModelLayout;
using offload::PlaneRole;
using offload::Planes;
using offload::ShardLayout;
using offload::TileId;
using ::testing::AllOf;
using ::testing::HasSubstr;

class CommittedStateTest : public offload::FolderTest {
 protected:
  static constexpr offload::Moments kFirstAlone{.exp_avg_sq = false};

  /// SmallLayout's model, changed.
  template <typename Change>
  static ShardLayout Changed(Change change, uint32_t world_size = 1) {
    ModelLayout model = offload::SmallLayout(DType::kBFloat16).model;
    change(model);
    return offload::MakeShard(std::move(model), 8192, world_size, /*rank=*/0);
  }

  /// The path of a state with this layout, whose tiles are zeros that nobody has written.
  std::string Commit(const ShardLayout& layout) {
    const auto engine = aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value();
    aio::Engine* const engines[] = {engine.get()};
    const auto file = offload::StateFile::Create(
        layout, {.folders = {folder_}, .require_direct = false}, engines);
    EXPECT_TRUE(file.ok()) << file.error().message;
    offload::CommitRecord record{.head = {.step = 1}};
    for (const TileId tile : layout.Tiles()) {
      const std::vector<std::byte> weight(layout.WeightBytes(tile).value);
      const std::vector<std::byte> states(layout.RecordBytes(tile).value);
      record.tiles.push_back(
          {.checksums = offload::ChecksumsOf((*file)->uuid(), layout, tile, 0, weight, states)});
    }
    const Status committed = (*file)->Commit(record);
    EXPECT_TRUE(committed.ok()) << committed.error().message;
    return (*file)->Shares().front().path;
  }

  void ExpectNotReadable(const ShardLayout& layout, ErrorCode code = ErrorCode::kUnavailable,
                         const char* why = "does not read") {
    const std::string path = Commit(layout);
    const auto state = CommittedState::Open({path});
    ASSERT_FALSE(state.ok());
    EXPECT_EQ(state.error().code, code);
    EXPECT_THAT(state.error().message, AllOf(HasSubstr(path), HasSubstr(why)));
  }
};

TEST_F(CommittedStateTest, AShareOfOneRankIsNotReadAsTheWholeModel) {
  ExpectNotReadable(Changed([](ModelLayout&) {}, /*world_size=*/2), ErrorCode::kCorruption,
                    "name the files of all ranks");
}

TEST_F(CommittedStateTest, StatesWithScalesAreNotReadAsIfTheyHadNone) {
  ExpectNotReadable(Changed([](ModelLayout& model) {
    model.groups[1].planes = Planes{MakePlane(PlaneRole::kWeight, Encoding::kFloat32),
                                    offload::MakeBlockwise8Plane(PlaneRole::kExpAvg)};
  }));
}

TEST_F(CommittedStateTest, AStateWithoutTilesIsNone) {
  ExpectNotReadable(Changed([](ModelLayout& model) {
    model.groups[0].name = "version 2 alone has no tiles";
    model.modules.clear();
    model.parameters = 0;
  }));
}

TEST_F(CommittedStateTest, AStateThatAGroupDoesNotKeepIsRefusedWithTensorAndGroup) {
  const ShardLayout layout = Changed([](ModelLayout& model) {
    model.groups[0].planes = offload::MakePlanes(DType::kBFloat16, kFirstAlone);
    model.groups[1].planes = offload::MakeFrozenPlanes(DType::kBFloat16);
    model.groups[1].frozen = true;
  });
  const auto state = CommittedState::Open({Commit(layout)});
  ASSERT_TRUE(state.ok()) << state.error().message;
  const auto read = [&](StateKind kind, size_t tensor) {
    std::vector<float> values(7, 5.0F);
    const Status status = (*state)->ReadState(kind, ModuleId{0}, tensor, 0, values);
    EXPECT_THAT(values, ::testing::Each(status.ok() ? 0.0F : 5.0F));
    return status;
  };
  EXPECT_TRUE(read(StateKind::kMaster, 0).ok());
  EXPECT_TRUE(read(StateKind::kExpAvg, 0).ok());
  EXPECT_TRUE(read(StateKind::kMaster, 1).ok()) << "of a frozen tensor, its weight";
  const std::tuple<StateKind, size_t, std::string, std::string> missing[] = {
      {StateKind::kExpAvgSq, 0, "a.weight", layout.model.groups[0].name},
      {StateKind::kExpAvg, 1, "a.bias", layout.model.groups[1].name},
      {StateKind::kExpAvgSq, 1, "a.bias", layout.model.groups[1].name}};
  for (const auto& [kind, tensor, name, group] : missing) {
    const Status refused = read(kind, tensor);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message,
                AllOf(HasSubstr("tensor " + name), HasSubstr("\"" + group + "\"")));
  }
}

}  // namespace
}  // namespace penstock::zero
