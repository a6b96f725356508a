#include "zero/commit_life.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

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
    EXPECT_FALSE(life.doubtful()) << "what a run went on from is not taken back";
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
    bool failed = false;
    std::vector<bool> losses;  ///< of forwards while it was the last one that was begun
  };
  std::vector<Commit> commits;

  const Commit* newest() const {
    for (auto it = commits.rbegin(); it != commits.rend(); ++it) {
      if (it->durable) return &*it;
    }
    return nullptr;
  }
  bool pending() const {
    return !commits.empty() && !commits.back().durable && !commits.back().failed;
  }
};

TEST(CommitLifeTest, InEveryOrderOfEventsItIsWhatTheHistorySays) {
  constexpr int kEvents = 9;
  uint64_t doubtful = 0;
  // Of each event: begin or end well; end badly; a finite loss; one that is not.
  for (uint64_t code = 0; code < (uint64_t{1} << (2 * kEvents)); ++code) {
    CommitLife life;
    History history;
    for (int event = 0; event < kEvents; ++event) {
      const uint64_t kind = code >> (2 * event) & 3;
      if (kind <= 1) {
        if (!history.pending() && life.doubtful()) continue;  // the session refuses it
        if (!history.pending()) {
          const uint64_t step = history.commits.size() + 1;
          life.Begin(step);
          history.commits.push_back({.step = step});
        } else if (kind == 0) {
          life.MadeDurable();
          history.commits.back().durable = true;
        } else {
          life.Failed();
          history.commits.back().failed = true;
        }
      } else {
        life.ForwardDone(kind == 2);
        // A loss after a commit that failed is of the weights after the newest that stands.
        History::Commit* of = nullptr;
        for (History::Commit& commit : history.commits) {
          if (!commit.failed) of = &commit;
        }
        if (of != nullptr) of->losses.push_back(kind == 2);
      }
      const History::Commit* const newest = history.newest();
      ASSERT_EQ(life.pending(), history.pending()) << code;
      ASSERT_EQ(life.newest().has_value(), newest != nullptr) << code;
      if (newest == nullptr) continue;
      ASSERT_EQ(*life.newest(), newest->step) << code;
      bool finite = false;
      for (const bool loss : newest->losses) finite = finite || loss;
      ASSERT_EQ(life.doubtful(), !newest->losses.empty() && !finite) << code;
      doubtful += life.doubtful() ? 1 : 0;
    }
  }
  EXPECT_GT(doubtful, 1000);
}

}  // namespace
}  // namespace penstock::zero
