// The state of several ranks as a reader finds it, and a copy of it.
#include "offload/whole_state.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "offload/state_check.h"
#include "offload/state_copy.h"
#include "tests/offload/one_rank.h"
#include "tests/offload/support.h"
#include "tests/temp_folder.h"

namespace penstock::offload {
namespace {

namespace fs = std::filesystem;
using ::testing::DoubleNear;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class WholeStateTest : public FolderTest {
 protected:
  static constexpr uint32_t kWorld = 3;  // of which the last has no tiles

  void SetUp() override {
    FolderTest::SetUp();
    for (uint32_t rank = 0; rank < kWorld; ++rank) {
      ranks_.push_back(std::make_unique<OneRank>(kUuid, Share(rank), folder_.string()));
      ASSERT_TRUE(ranks_[rank]->Create().ok());
    }
  }

  static ShardLayout Share(uint32_t rank) {
    return MakeShard(SmallLayout(DType::kBFloat16).model, 8192, kWorld, rank);
  }

  void Commit(uint32_t rank, const CommitName& name) {
    ASSERT_TRUE(ranks_[rank]->Write(static_cast<uint8_t>(name.step)).ok());
    ASSERT_TRUE(ranks_[rank]->Commit(name, fmt::format("{{\"rank\":{}}}", rank)).ok());
  }
  void CommitAll(const CommitName& name) {
    for (uint32_t rank = 0; rank < kWorld; ++rank) Commit(rank, name);
  }
  void End() {
    for (const auto& rank : ranks_) rank->End();
  }
  RankPaths Paths() const {
    RankPaths paths;
    for (const auto& rank : ranks_) paths.push_back(rank->paths());
    return paths;
  }

  /// That the commit of `step` is open on all ranks, whole.
  static void ExpectStep(const WholeState& state, uint64_t step) {
    EXPECT_EQ(state.commit().head.step, step);
    for (uint32_t rank = 0; rank < kWorld; ++rank) {
      EXPECT_EQ(state.rank(rank).commit().head.step, step);
      for (const TileId tile : state.rank(rank).layout().Tiles()) {
        StateReader::TileBytes bytes;
        const Status read = state.rank(rank).ReadTile(tile, bytes);
        ASSERT_TRUE(read.ok()) << read.error().message;
        EXPECT_EQ(bytes.record.back(), static_cast<std::byte>(step));
      }
      const auto check = CheckState(state.rank(rank), kNoProgress);
      ASSERT_TRUE(check.ok()) << check.error().message;
      EXPECT_THAT(check->damages, IsEmpty());
      EXPECT_EQ(check->read == 0_B, state.rank(rank).layout().tiles.empty());
    }
  }

  std::vector<std::unique_ptr<OneRank>> ranks_;
};

TEST_F(WholeStateTest, TheNewestCommitOfAllRanksIsOpenedWithTheTextOfTheFirst) {
  CommitAll({1, 7});
  CommitAll({2, 7});
  End();
  const auto state = WholeState::Open(Paths());
  ASSERT_TRUE(state.ok()) << state.error().message;
  ExpectStep(state.value(), 2);
  EXPECT_EQ(state.value().commit().json, "{\"rank\":0}");
  EXPECT_EQ(state.value().notice(), "");
  const std::vector<double> shares = state.value().Shares();
  EXPECT_THAT(shares, SizeIs(kWorld));
  EXPECT_THAT(std::accumulate(shares.begin(), shares.end(), 0.0), DoubleNear(1, 1e-12));
  EXPECT_GT(shares[0], shares[1]);
  EXPECT_EQ(shares[2], 0);
}

TEST_F(WholeStateTest, ACommitThatARankLacksIsPassedOverAndNamed) {
  CommitAll({1, 7});
  Commit(0, {2, 7});
  Commit(2, {2, 7});
  End();
  const auto state = WholeState::Open(Paths());
  ASSERT_TRUE(state.ok()) << state.error().message;
  ExpectStep(state.value(), 1);
  EXPECT_THAT(state.value().notice(), HasSubstr("rank 0 holds a commit of step 2"));
}

TEST_F(WholeStateTest, AFileThatIsNotThereIsNamedWithItsRank) {
  CommitAll({1, 7});
  End();
  const std::string missing = ranks_[2]->paths().front();
  fs::rename(missing, missing + ".aside");
  EXPECT_TRUE(FailsWith(WholeState::Open(Paths()), ErrorCode::kCorruption,
                        {"rank 2", missing, "not whole without that file"}));
  // Without a commit elsewhere nothing is lost with it.
  for (const uint32_t rank : {0U, 1U}) {
    fs::remove(ranks_[rank]->paths().front());
    ASSERT_TRUE(ranks_[rank]->Create().ok());
    ranks_[rank]->file().Submit({.operation = aio::Operation::kSync}).Wait().ok();
  }
  EXPECT_TRUE(FailsWith(WholeState::Open(Paths(), StateLock::kHeld), ErrorCode::kNotFound,
                        {"rank 2", missing}));
}

TEST_F(WholeStateTest, FilesThatDoNotBelongThereAreRefused) {
  CommitAll({1, 7});
  End();
  const RankPaths paths = Paths();
  EXPECT_TRUE(FailsWith(WholeState::Open({paths[1], paths[0], paths[2]}), ErrorCode::kCorruption,
                        {paths[1].front(), "of rank 1 of 3, where rank 0 of 3 was expected"}));
  EXPECT_TRUE(FailsWith(WholeState::Open({paths[0], paths[1]}), ErrorCode::kCorruption,
                        {paths[0].front(), "of rank 0 of 3, where rank 0 of 2 was expected"}));
  EXPECT_TRUE(FailsWith(WholeState::Open({paths[0]}), ErrorCode::kCorruption,
                        {paths[0].front(), "of rank 0 of 3, where rank 0 of 1 was expected"}));
  EXPECT_TRUE(FailsWith(WholeState::Open({paths[0], paths[1], paths[0]}), ErrorCode::kCorruption,
                        {"rank 2", paths[0].front(), "named twice"}));
  const Uuid other_uuid = {9};
  OneRank other(other_uuid, Share(1), folder_.string());
  ASSERT_TRUE(other.Create().ok());
  ASSERT_TRUE(other.Write(1).ok());
  ASSERT_TRUE(other.Commit({1, 7}).ok());
  other.End();
  EXPECT_TRUE(FailsWith(WholeState::Open({paths[0], other.paths(), paths[2]}),
                        ErrorCode::kCorruption,
                        {"rank 1", other.paths().front(), ToString(other_uuid), ToString(kUuid)}));
}

TEST_F(WholeStateTest, SharesOfOtherModelsOrSlotsAreRefused) {
  CommitAll({1, 7});
  End();
  const std::string path = ranks_[1]->paths().front();
  fs::remove(path);
  OneRank of_fp32(kUuid, MakeShard(SmallLayout(DType::kFloat32).model, 8192, kWorld, 1), folder_);
  OneRank of_one_slot(kUuid, Share(1), folder_);
  for (OneRank* const rank : {&of_fp32, &of_one_slot}) {
    ASSERT_TRUE(rank->Create(/*durable=*/rank == &of_fp32).ok());
    ASSERT_TRUE(rank->Write(1).ok());
    ASSERT_TRUE(rank->Commit({1, 7}).ok());
    rank->End();
    EXPECT_TRUE(FailsWith(WholeState::Open(Paths()), ErrorCode::kCorruption,
                          {"rank 1", path, "another layout"}));
    fs::remove(path);
  }
}

TEST_F(WholeStateTest, RecordsOfOneNameThatDoNotBelongTogetherAreRefused) {
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    ASSERT_TRUE(ranks_[rank]->Write(1).ok());
    ASSERT_TRUE(ranks_[rank]->Commit({1, 7}, "{}", /*seed=*/rank).ok());
  }
  End();
  EXPECT_TRUE(FailsWith(WholeState::Open(Paths()), ErrorCode::kCorruption,
                        {"rank 1", "step 1", ranks_[1]->paths().front()}));
}

TEST_F(WholeStateTest, AWriterOfOneRankIsRefusedWhileAReaderHasTheState) {
  CommitAll({1, 7});
  End();
  const auto state = WholeState::Open(Paths());
  ASSERT_TRUE(state.ok());
  const auto beside = WholeState::Open(Paths());
  EXPECT_TRUE(beside.ok()) << "readers share";
  EXPECT_TRUE(FailsWith(ranks_[1]->Open({}), ErrorCode::kUnavailable,
                        {ranks_[1]->paths().front(), "in use"}));
}

TEST_F(WholeStateTest, ACopyHoldsTheCommitOfAllRanksAndNoOther) {
  CommitAll({1, 7});
  Commit(1, {2, 7});
  End();
  const auto state = WholeState::Open(Paths());
  ASSERT_TRUE(state.ok()) << state.error().message;
  RankPaths targets;
  for (const auto& paths : Paths()) targets.push_back({paths.front() + ".copy"});
  const Status copied = CopyState(state.value(), targets, [] { return false; });
  ASSERT_TRUE(copied.ok()) << copied.error().message;
  const auto copy = WholeState::Open(targets);
  ASSERT_TRUE(copy.ok()) << copy.error().message;
  ExpectStep(copy.value(), 1);
  EXPECT_EQ(copy.value().notice(), "");
  EXPECT_THAT(copy.value().rank(1).commits(), SizeIs(1));
}

TEST_F(WholeStateTest, ACopyThatCannotBeMadeOfOneRankLeavesNoneOfTheOthers) {
  CommitAll({1, 7});
  End();
  const auto state = WholeState::Open(Paths());
  ASSERT_TRUE(state.ok());
  RankPaths targets;
  for (const auto& paths : Paths()) targets.push_back({paths.front() + ".copy"});
  size_t asked = 0;
  const Status stopped = CopyState(state.value(), targets, [&] { return ++asked == 4; });
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
  targets[2] = {(folder_ / "no such folder" / "copy").string()};
  EXPECT_FALSE(CopyState(state.value(), targets, [] { return false; }).ok());
  for (const auto& entry : fs::directory_iterator(folder_)) {
    EXPECT_THAT(entry.path().string(), Not(HasSubstr("copy")));
  }
}

}  // namespace
}  // namespace penstock::offload
