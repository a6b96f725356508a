#include "zero/session/commit_life.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "tests/search_share.h"

namespace penstock::zero {
namespace {

TEST(CommitLifeTest, ACommitIsTheNewestWhenItIsDurable) {
  CommitLife life;
  EXPECT_FALSE(life.newest());
  life.Begin(3);
  EXPECT_TRUE(life.pending());
  EXPECT_FALSE(life.newest());
  life.MadeDurable();
  EXPECT_FALSE(life.pending());
  EXPECT_EQ(life.newest(), 3);
  EXPECT_FALSE(life.doubtful()) << "nothing speaks against it";
}

TEST(CommitLifeTest, ACommitThatFailsLeavesTheOneBeforeTheNewest) {
  CommitLife life;
  life.Begin(3);
  life.MadeDurable();
  life.Begin(4);
  life.ForwardDone(false);
  life.Failed();
  EXPECT_EQ(life.newest(), 3);
  EXPECT_FALSE(life.doubtful()) << "the loss was of the weights of step 4";
}

TEST(CommitLifeTest, ALossThatIsNotFiniteMakesACommitDoubtfulUntilAFiniteOneConfirmsIt) {
  for (const bool before_it_is_durable : {false, true}) {
    CommitLife life;
    life.Begin(3);
    if (before_it_is_durable) life.ForwardDone(false);
    life.MadeDurable();
    if (!before_it_is_durable) life.ForwardDone(false);
    EXPECT_TRUE(life.doubtful());
    life.ForwardDone(false);
    EXPECT_TRUE(life.doubtful());
    life.ForwardDone(true);
    EXPECT_FALSE(life.doubtful());
    life.ForwardDone(false);
    EXPECT_FALSE(life.doubtful()) << "confirmed weights were updated since";
  }
}

TEST(CommitLifeTest, ARetractedCommitLeavesTheOneBeforeWhereThatStands) {
  for (const bool stands : {false, true}) {
    CommitLife life;
    life.Begin(3);
    life.MadeDurable();
    life.ForwardDone(true);
    life.Begin(4);
    life.MadeDurable();
    life.ForwardDone(false);
    life.Retract(stands);
    EXPECT_EQ(life.newest(), stands ? std::optional<uint64_t>(3) : std::nullopt);
    EXPECT_FALSE(life.doubtful()) << "the commit from which a run resumed is not taken back";
  }
}

TEST(CommitLifeTest, TheOnlyCommitIsNotRetracted) {
  CommitLife life;
  life.Begin(3);
  life.MadeDurable();
  life.ForwardDone(false);
  EXPECT_TRUE(life.doubtful());
  EXPECT_FALSE(life.retractable());
}

TEST(CommitLifeTest, ACommitOfWeightsThatGaveAFiniteLossIsNeverDoubtful) {
  CommitLife life;
  life.Begin(3, /*confirmed=*/true);
  life.MadeDurable();
  life.ForwardDone(false);
  EXPECT_FALSE(life.doubtful());
}

TEST(CommitLifeTest, ACommitIsConfirmedByTheFirstFiniteLossAfterIt) {
  CommitLife life;
  EXPECT_FALSE(life.confirmed());
  life.Begin(3);
  life.MadeDurable();
  EXPECT_FALSE(life.confirmed());
  life.ForwardDone(false);
  EXPECT_FALSE(life.confirmed());
  life.ForwardDone(true);
  EXPECT_TRUE(life.confirmed());
  life.Begin(4);
  EXPECT_TRUE(life.confirmed()) << "that of step 3 still is";
  life.MadeDurable();
  EXPECT_FALSE(life.confirmed());
}

TEST(CommitLifeTest, ACommitOfAnotherProcessIsNeverDoubtful) {
  CommitLife life;
  life.Adopt(7);
  life.ForwardDone(false);
  EXPECT_FALSE(life.doubtful());
  EXPECT_EQ(life.newest(), 7);
}

/// What a commit is, told from the whole history instead of from a few flags.
struct History {
  struct Commit {
    uint64_t step = 0;
    bool durable = false;
    bool lost = false;         ///< it failed, was taken back, or a later one took its place
    std::vector<bool> losses;  ///< of forwards while it was the last one that was begun
  };
  std::vector<Commit> commits;

  /// The last commit but `newer` of those that are, or are to be, on the drive.
  Commit* Standing(size_t newer, bool durable) {
    for (auto it = commits.rbegin(); it != commits.rend(); ++it) {
      if (!it->lost && (it->durable || !durable) && newer-- == 0) return &*it;
    }
    return nullptr;
  }
  Commit* newest() { return Standing(0, true); }
  Commit* before() { return Standing(1, true); }
  bool pending() const {
    return !commits.empty() && !commits.back().durable && !commits.back().lost;
  }
  static bool Finite(const Commit& commit) {
    return std::ranges::find(commit.losses, true) != commit.losses.end();
  }
  static bool Doubtful(const Commit* commit) {
    return commit != nullptr && !commit->losses.empty() && !Finite(*commit);
  }

  // There are slots for two commits.
  void MakeDurable() {
    if (before() != nullptr) before()->lost = true;
    commits.back().durable = true;
  }
  void Retract(bool before_stands) {
    if (!before_stands) before()->lost = true;
    newest()->lost = true;
  }
};

/// A commit's life beside its history.
class Lives {
 public:
  static constexpr uint64_t kEvents = 6;

  /// Ends or begins a commit, has a forward, or takes a commit back, if a session would.
  void Happen(uint64_t event) {
    if (event <= 1) {
      if (history_.pending()) {
        EndCommit(/*durable=*/event == 0);
      } else if (!life_.doubtful()) {
        life_.Begin(++step_);
        history_.commits.push_back({.step = step_});
      }
    } else if (event <= 3) {
      life_.ForwardDone(event == 2);
      // A loss after a commit that failed is of the weights after the newest that stands.
      History::Commit* const of = history_.Standing(0, false);
      if (of != nullptr) of->losses.push_back(event == 2);
    } else if (life_.retractable() && !life_.pending()) {
      life_.Retract(event == 4);
      history_.Retract(event == 4);
    }
  }

  void ExpectAlike() {
    const History::Commit* const newest = history_.newest();
    const bool doubtful = History::Doubtful(newest);
    const bool has_before = history_.before() != nullptr;
    ASSERT_EQ(life_.pending(), history_.pending());
    ASSERT_EQ(life_.newest(), newest == nullptr ? std::nullopt : std::optional(newest->step));
    ASSERT_EQ(life_.doubtful(), doubtful);
    ASSERT_EQ(life_.retractable(), doubtful && has_before);
    ASSERT_EQ(life_.unproven(), newest != nullptr && has_before && !History::Finite(*newest));
  }

  const CommitLife& life() const { return life_; }

 private:
  void EndCommit(bool durable) {
    if (durable) {
      life_.MadeDurable();
      history_.MakeDurable();
    } else {
      life_.Failed();
      history_.commits.back().lost = true;
    }
  }

  CommitLife life_;
  History history_;
  uint64_t step_ = 0;
};

TEST(CommitLifeTest, InEveryOrderOfEventsItIsWhatTheHistorySays) {
  constexpr int kLength = 8;
  uint64_t orders = 1;
  for (int i = 0; i < kLength; ++i) orders *= Lives::kEvents;
  uint64_t doubtful = 0;
  uint64_t retractable = 0;
  for (uint64_t order = 0; order < orders; order += kSearchStride) {
    Lives lives;
    uint64_t rest = order;
    for (int i = 0; i < kLength; ++i, rest /= Lives::kEvents) {
      lives.Happen(rest % Lives::kEvents);
      ASSERT_NO_FATAL_FAILURE(lives.ExpectAlike()) << order;
      doubtful += lives.life().doubtful() ? 1 : 0;
      retractable += lives.life().retractable() ? 1 : 0;
    }
  }
  EXPECT_GT(doubtful, SearchShare(1000));
  EXPECT_GT(retractable, SearchShare(1000));
}

}  // namespace
}  // namespace penstock::zero
