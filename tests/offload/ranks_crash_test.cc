// What the ranks of a state have in common after a crash, wherever it comes: in the writes of a
// step, in a commit, between one rank's commit and the vote of all, or while a commit that some
// ranks lack is taken back. Each rank has a drive of its own that forgets and tears.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "offload/state_reader.h"
#include "tests/offload/one_rank.h"
#include "tests/offload/support.h"
#include "tests/search_share.h"

namespace penstock::offload {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr uint32_t kWorld = 3;  // of which the last has no tiles
/// In which a commit is taken back and the first writes of a step are made.
constexpr uint64_t kBlocksOfAResume = 12;

/// Where the others are when a rank crashes. They end with it.
enum class Others {
  kBehind,   ///< they have not begun what it does
  kThere,    ///< they have done it as well
  kAtStart,  ///< the same, and when it opens its files they have committed the next step already
};

struct Crash {
  uint32_t rank = 0;
  uint64_t block = 0;  ///< of the rank's drive
  Others others = Others::kBehind;
};

/// The byte that fills every tile of a commit.
uint8_t ValueOf(const CommitName& name) {
  return static_cast<uint8_t>(50 * name.session + name.step);
}

class RanksCrashTest : public ::testing::Test {
 protected:
  RanksCrashTest() {
    fs::create_directories(folder_ / "now");
    for (uint32_t rank = 0; rank < kWorld; ++rank) {
      ranks_.push_back(std::make_unique<OneRank>(
          kUuid, MakeShard(SmallLayout(DType::kBFloat16).model, 8192, kWorld, rank),
          (folder_ / "now").string()));
    }
  }

  ~RanksCrashTest() override { fs::remove_all(folder_); }

  /// Step 1 of session 1, committed on all ranks.
  void MakeFirstCommit() {
    for (const auto& rank : ranks_) {
      ASSERT_TRUE(rank->Create().ok());
      ASSERT_TRUE(rank->Write(ValueOf({1, 1})).ok());
      ASSERT_TRUE(rank->Commit({1, 1}).ok());
      rank->End();
    }
    ASSERT_TRUE(ranks_.back()->layout().tiles.empty());
  }

  void Keep(const std::string& name) {
    fs::remove_all(folder_ / name);
    fs::copy(folder_ / "now", folder_ / name);
  }
  void Restore(const std::string& name) {
    fs::remove_all(folder_ / "now");
    fs::copy(folder_ / name, folder_ / "now");
  }

  /// A start that resumes from `from` in its own session, and commits this many steps. Returns
  /// whether it came to its end.
  bool Live(CommitName from, uint64_t session, uint64_t steps, const std::optional<Crash>& crash) {
    starts_ += kWorld;
    const auto faults = [&](uint32_t rank) {
      aio::FaultPlan plan{.seed = starts_ + rank, .lose_unsynced = true};
      if (crash && crash->rank == rank) plan.crash_at_block = crash->block;
      return plan;
    };
    const auto write = [&](uint32_t rank, uint64_t step) {
      return ranks_[rank]->Write(ValueOf({step, session}));
    };
    const auto commit = [&](uint32_t rank, uint64_t step) {
      return ranks_[rank]->Commit({step, session});
    };
    bool whole = OnAllRanks(crash, [&](uint32_t rank) -> Status {
      PENSTOCK_TRY(ranks_[rank]->Open(from, faults(rank)));
      if (!crash || crash->others != Others::kAtStart || crash->rank == rank) return {};
      PENSTOCK_TRY(write(rank, from.step + 1));
      return commit(rank, from.step + 1);
    });
    if (whole && crash && crash->others == Others::kAtStart) whole = false;  // nothing else to see
    for (uint64_t step = from.step + 1; whole && step <= from.step + steps; ++step) {
      whole = OnAllRanks(crash, [&](uint32_t rank) { return write(rank, step); }) &&
              OnAllRanks(crash, [&](uint32_t rank) { return commit(rank, step); });
      if (whole) voted_ = {step, session};
    }
    for (const auto& rank : ranks_) rank->End();
    return whole;
  }

  /// Each rank does the same; the first that fails ends it.
  template <typename F>
  static bool OnAllRanks(const std::optional<Crash>& crash, F f) {
    std::vector<uint32_t> order = {0, 1, 2};
    if (crash) {
      const auto victim = order.begin() + crash->rank;
      std::rotate(order.begin(), crash->others == Others::kBehind ? victim : victim + 1,
                  order.end());
    }
    return std::ranges::all_of(order, [&](uint32_t rank) { return f(rank).ok(); });
  }

  /// The commit that the ranks agree on, which must be the last one that all voted for, or the one
  /// after it, and whole on each of them.
  CommitName ExpectOneState() {
    std::vector<std::unique_ptr<StateReader>> readers;
    std::vector<std::vector<HeldCommit>> held;
    for (const auto& rank : ranks_) {
      auto reader = StateReader::OpenToAgree(rank->paths(), StateLock::kExclusive);
      EXPECT_TRUE(reader.ok()) << reader.error().message;
      held.push_back((*reader)->commits());
      readers.push_back(*std::move(reader));
    }
    const Result<std::vector<CommitName>> common = CommonCommits(held);
    EXPECT_TRUE(common.ok()) << common.error().message;
    if (!common.ok()) return voted_;
    const CommitName* const agreed = &common->front();
    EXPECT_TRUE(*agreed == voted_ || agreed->step == voted_.step + 1)
        << agreed->step << " of " << agreed->session << " after " << voted_.step;
    for (const auto& reader : readers) {
      if (reader->commits().front().name != *agreed) ++torn_;
      // Also what not all ranks hold: no valid record names slots that were written over.
      ExpectWhole(*reader, reader->commits().front().name);
      ExpectWhole(*reader, *agreed);
    }
    voted_ = *agreed;
    return *agreed;
  }

  static void ExpectWhole(StateReader& reader, const CommitName& name) {
    EXPECT_TRUE(reader.Use(name).ok());
    for (const TileId tile : reader.layout().Tiles()) {
      StateReader::TileBytes bytes;
      const Status read = reader.ReadTile(tile, bytes);
      EXPECT_TRUE(read.ok()) << read.error().message;
      EXPECT_EQ(bytes.weight.front(), std::byte{ValueOf(name)});
      EXPECT_EQ(bytes.record.back(), std::byte{ValueOf(name)});
    }
  }

  /// In memory: what a drive forgets is simulated, and thousands of synchronisations would wait for
  /// a real one.
  const fs::path folder_ = fmt::format("/dev/shm/penstock-ranks-crash-test-{}", ::getpid());
  std::vector<std::unique_ptr<OneRank>> ranks_;
  CommitName voted_{1, 1};
  uint64_t starts_ = 0;  ///< times the number of ranks: what each start forgets is another
  size_t torn_ = 0;      ///< how often a rank held a commit that others lacked
};

TEST_F(RanksCrashTest, ACrashAnywhereAndOneInTheResumeLeaveOneWholeCommitOnAllRanks) {
  MakeFirstCommit();
  Keep("first");
  uint64_t lives = 0;
  for (uint32_t rank = 0; rank < kWorld; ++rank) {
    for (const Others others : {Others::kBehind, Others::kThere}) {
      bool whole = false;
      for (uint64_t block = 0; !whole; block += kSearchStride) {
        SCOPED_TRACE(fmt::format("rank {} crashes at block {}, others {}", rank, block,
                                 static_cast<int>(others)));
        Restore("first");
        voted_ = {1, 1};
        whole = Live(voted_, 2, 2, Crash{rank, block, others});
        const CommitName after = ExpectOneState();
        Keep("crashed");
        for (const Others again : {Others::kBehind, Others::kThere, Others::kAtStart}) {
          // Another one each time: in the course of the search all of them.
          const Crash second{static_cast<uint32_t>(lives % kWorld),
                             lives / kWorld % kBlocksOfAResume, again};
          SCOPED_TRACE(fmt::format("then rank {} at block {}, others {}", second.rank, second.block,
                                   static_cast<int>(again)));
          ++lives;
          Restore("crashed");
          voted_ = after;
          Live(after, 3, 2, second);
          const CommitName last = ExpectOneState();
          EXPECT_TRUE(Live(last, 4, 1, {}));
          EXPECT_EQ(ExpectOneState(), (CommitName{last.step + 1, 4}));
        }
        if (HasFailure()) return;
      }
    }
  }
  if (kSearchStride == 1) {
    EXPECT_GT(lives, 2 * 3 * kWorld * kBlocksOfAResume);
    EXPECT_GT(torn_, 20U) << "commits that not all ranks had made were seen";
  }
}

TEST_F(RanksCrashTest, AFirstCommitThatARankLacksIsNone) {
  for (const auto& rank : ranks_) {
    ASSERT_TRUE(rank->Create().ok());
    ASSERT_TRUE(rank->Write(1).ok());
    ASSERT_TRUE(rank->layout().rank == 1 || rank->Commit({1, 1}).ok());
  }
  std::vector<std::vector<HeldCommit>> held;
  for (const auto& rank : ranks_) {
    held.push_back(StateReader::OpenToAgree(rank->paths(), StateLock::kHeld).value()->commits());
  }
  const Result<std::vector<CommitName>> agreed = CommonCommits(held);
  ASSERT_FALSE(agreed.ok());
  EXPECT_EQ(agreed.error().code, ErrorCode::kNotFound);
}

TEST_F(RanksCrashTest, ACommitThatIsNotThereIsNotGoneOnFrom) {
  MakeFirstCommit();
  for (const CommitName& name : {CommitName{1, 2}, CommitName{2, 1}}) {
    const Status opened = ranks_[0]->Open(name);
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code, ErrorCode::kNotFound);
    EXPECT_THAT(opened.error().message, HasSubstr(ranks_[0]->paths().front()));
  }
}

TEST_F(RanksCrashTest, WithoutANewerCommitNothingIsWrittenToTheCommitPlaces) {
  MakeFirstCommit();
  ASSERT_TRUE(ranks_[0]->Open(CommitName{1, 1}).ok());
  ASSERT_TRUE(ranks_[0]->Write(7).ok());
  ASSERT_TRUE(ranks_[0]->Commit({2, 1}).ok());
  ranks_[0]->End();
  ASSERT_TRUE(ranks_[0]->Open(CommitName{2, 1}).ok());
  ranks_[0]->End();
  const auto reader = StateReader::Open(ranks_[0]->paths()).value();
  EXPECT_THAT(reader->commits(), ::testing::SizeIs(2)) << "the one before is left as it is";
}

TEST_F(RanksCrashTest, AReaderReadsTheOlderCommitWhereItIsAsked) {
  MakeFirstCommit();
  ASSERT_TRUE(ranks_[0]->Open(CommitName{1, 1}).ok());
  ASSERT_TRUE(ranks_[0]->Write(7).ok());
  ASSERT_TRUE(ranks_[0]->Commit({2, 5}).ok());
  ranks_[0]->End();
  const auto reader = StateReader::Open(ranks_[0]->paths()).value();
  StateReader::TileBytes bytes;
  const auto read = [&](const CommitName& name) {
    EXPECT_TRUE(reader->Use(name).ok());
    EXPECT_EQ(reader->commit().head.step, name.step);
    EXPECT_TRUE(reader->ReadTile(TileId{0}, bytes).ok());
    return bytes.weight.front();
  };
  EXPECT_EQ(read({2, 5}), std::byte{7});
  EXPECT_EQ(read({1, 1}), std::byte{ValueOf({1, 1})});
  EXPECT_EQ(read({2, 5}), std::byte{7});
  EXPECT_EQ(reader->Use({2, 1}).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace penstock::offload
