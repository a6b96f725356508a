#include "run/observers/observer_list.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <string>
#include <vector>

namespace penstock::train {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

constexpr Turn kTurns[] = {Turn::kDoubt,    Turn::kRanks,  Turn::kSearch,
                           Turn::kWatch,    Turn::kTrace,  Turn::kRows,
                           Turn::kProgress, Turn::kFolder, Turn::kSnapshots};

/// Writes down whom it is told what.
class Teller final : public StepObserver {
 public:
  Teller(Turn turn, std::vector<Turn>& told) : turn_(turn), told_(told) {}
  Status failure;  ///< of what can fail

  void Doing(std::string_view, uint64_t) override { told_.push_back(turn_); }
  Status AfterStep(DoneStep&) override { return Told(); }
  Status AfterRow(const ClosedRow&) override { return Told(); }
  void ReleaseCommit() override { told_.push_back(turn_); }
  Status SyncRows() override { return Told(); }
  Status AfterCommit() override { return Told(); }
  void CommitRefused(uint64_t, const std::string&) override { told_.push_back(turn_); }
  void KeepCommit() override { told_.push_back(turn_); }
  void Failing(const Error&, const std::optional<uint64_t>&) override { told_.push_back(turn_); }
  void AtEnd(const TrainingEnd&) override { told_.push_back(turn_); }

 private:
  Status Told() {
    told_.push_back(turn_);
    return failure;
  }
  const Turn turn_;
  std::vector<Turn>& told_;
};

using Event = std::function<Status(StepObserver&)>;

/// Those that can fail, and the others.
std::vector<Event> FailingEvents() {
  return {[](StepObserver& observer) {
            const zero::StepFigures figures;
            DoneStep step{.numbers = {}, .figures = figures};
            return observer.AfterStep(step);
          },
          [](StepObserver& observer) {
            const StepRow row;
            return observer.AfterRow({.row = row, .samples = 0, .begin = {}, .end = {}});
          },
          [](StepObserver& observer) { return observer.SyncRows(); },
          [](StepObserver& observer) { return observer.AfterCommit(); }};
}

std::vector<Event> OtherEvents() {
  const auto of = [](auto call) {
    return [call](StepObserver& observer) {
      call(observer);
      return Status();
    };
  };
  return {of([](StepObserver& observer) { observer.Doing("reads", 1); }),
          of([](StepObserver& observer) { observer.ReleaseCommit(); }),
          of([](StepObserver& observer) { observer.CommitRefused(1, "why"); }),
          of([](StepObserver& observer) { observer.KeepCommit(); }),
          of([](StepObserver& observer) {
            observer.Failing({ErrorCode::kIo, "why"}, {});
          }),
          of([](StepObserver& observer) { observer.AtEnd({}); })};
}

std::vector<Event> AllEvents() {
  std::vector<Event> events = FailingEvents();
  for (Event& event : OtherEvents()) events.push_back(std::move(event));
  return events;
}

/// One observer for each turn, added in the order of `turns`.
struct Listed {
  explicit Listed(const std::vector<Turn>& turns) {
    for (const Turn turn : turns) list.Add(turn, tellers.emplace_back(turn, told));
  }
  std::vector<Turn> told;
  std::deque<Teller> tellers;
  ObserverList list;
};

TEST(ObserverListTest, EachEventIsCalledByTurnForAnyOrderOfAddition) {
  std::vector<Turn> turns(std::begin(kTurns), std::end(kTurns));
  // Each pair of neighbours comes in both orders.
  for (const bool reversed : {false, true}) {
    if (reversed) std::ranges::reverse(turns);
    for (size_t i = 0; i < turns.size(); ++i) {
      std::ranges::rotate(turns, turns.begin() + 1);
      for (const Event& event : AllEvents()) {
        Listed listed(turns);
        EXPECT_TRUE(event(listed.list).ok());
        EXPECT_THAT(listed.told, ElementsAreArray(kTurns));
      }
    }
  }
}

TEST(ObserverListTest, WhereOneFailsThoseAfterItAreNotTold) {
  for (const Event& event : FailingEvents()) {
    Listed listed({Turn::kFolder, Turn::kRows, Turn::kSnapshots});
    listed.tellers.front().failure = MakeError(ErrorCode::kNotFound, "RUN was removed");
    const Status told = event(listed.list);
    ASSERT_FALSE(told.ok());
    EXPECT_EQ(told.error().message, "RUN was removed");
    EXPECT_THAT(listed.told, ElementsAre(Turn::kRows, Turn::kFolder));
  }
}

TEST(ObserverListTest, WhatOneAddsToAStepThoseAfterItSee) {
  class Finder final : public StepObserver {
    Status AfterStep(DoneStep& step) override {
      step.numbers.first = FirstNonFinite{.tensor = "h.1"};
      return {};
    }
  } finder;
  class Reader final : public StepObserver {
   public:
    std::string seen;
    Status AfterStep(DoneStep& step) override {
      if (step.numbers.first) seen = step.numbers.first->tensor;
      return {};
    }
  } reader;
  ObserverList list;
  list.Add(Turn::kWatch, reader);
  list.Add(Turn::kSearch, finder);
  EXPECT_TRUE(FailingEvents().front()(list).ok());
  EXPECT_EQ(reader.seen, "h.1");
}

/// `first` and `then` are called in this order, for any order of addition.
void ExpectOrder(Turn first, Turn then, const char* why) {
  for (const std::vector<Turn>& added : {std::vector{first, then}, std::vector{then, first}}) {
    Listed listed(added);
    listed.list.AtEnd({});
    EXPECT_THAT(listed.told, ElementsAre(first, then)) << why;
  }
}

TEST(ObserverListTest, TheOrderHasItsReasons) {
  ExpectOrder(Turn::kDoubt, Turn::kRanks, "other ranks may end this process");
  ExpectOrder(Turn::kRanks, Turn::kSearch, "other ranks must not wait for one that fails");
  ExpectOrder(Turn::kSearch, Turn::kWatch, "the watch reports what was found");
  ExpectOrder(Turn::kRows, Turn::kProgress, "what is shown is written");
  ExpectOrder(Turn::kSearch, Turn::kFolder, "a first step whose search fails leaves no RUN");
  ExpectOrder(Turn::kFolder, Turn::kSnapshots, "a RUN that is gone gets no snapshot");
}

}  // namespace
}  // namespace penstock::train
