// The life of a training, in all orders of events, against the list of what happened; and with
// rules that are wrong on purpose, each of which that has to find.
#include "zero/session/step_life.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/search_share.h"
#include "tests/zero/session/step_life_history.h"

namespace penstock::zero {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const ModelSpec& TwoModules() {
  static const ModelSpec kModel = [] {
    ModelSpec model;
    model.modules = {{.name = "a", .tensors = {}}, {.name = "b", .tensors = {}}};
    return *WithOrder(std::move(model));
  }();
  return kModel;
}

/// A life beside its history.
template <typename Life>
class Lives {
 public:
  explicit Lives(const LifeRules& rules)
      : rules_(rules), life_(TwoModules(), rules, {}), history_(rules) {
    life_.FillAll();
  }

  const History& history() const { return history_; }

  /// Whether the event may happen, perhaps behind what it takes before: a step that ends begins
  /// first, and so does a commit that is made.
  bool Takes(Event event) const {
    if (IsEnd(event) && !history_.open()) return history_.Allows(Event::kBegin);
    if (event == Event::kCommitMade && !history_.pending()) {
      return history_.Allows(Event::kBeginCommit);
    }
    return history_.Allows(event);
  }
  /// Lets it happen. Returns whether it became of it what had to.
  bool Happen(Event event) {
    if (IsEnd(event) && !history_.open()) HappenAlone(Event::kBegin);
    if (event == Event::kCommitMade && !history_.pending()) HappenAlone(Event::kBeginCommit);
    return !history_.Allows(event) || HappenAlone(event);
  }

  /// Returns what differs, if anything. `with_end`: also how far the end is.
  std::string Difference(bool with_end) const {
    const auto differs = [](const char* what) { return std::string(what); };
    for (const Event event : kRefusable) {
      if (Permits(event) != history_.Allows(event)) return differs("what may come next");
    }
    const offload::CommitHead head = history_.Head();
    if (!(life_.counts() == head)) return differs("the counts");
    if (life_.open() != history_.open()) return differs("whether a step is open");
    if (life_.failure().ok() == history_.ended()) return differs("whether it has ended");
    if (life_.CheckStreaks().ok() == history_.Stops()) return differs("the streaks");
    if (with_end && rules_.step.skips_overflow &&
        life_.SkipsToTheEnd() != history_.SkipsToTheEnd()) {
      return differs("the steps to the end");
    }
    if (life_.commits().newest() != history_.committed_step()) return differs("the newest commit");
    if (life_.commits().pending() != history_.pending()) return differs("the pending commit");
    if (life_.commits().confirmed() != history_.confirmed()) return differs("the confirmation");
    if (life_.commits().doubtful() != history_.doubtful()) return differs("the doubt");
    if (life_.retractable() != history_.retractable()) return differs("what can be taken back");
    if (life_.proven() != history_.proven()) return differs("what is proven");
    if (life_.untried() != history_.untried()) return differs("what is untried");
    const double scale = head.loss_scale ? head.loss_scale->scale : 1;
    if (life_.next_scale() != scale) return differs("the loss scale");
    return {};
  }

 private:
  static bool IsEnd(Event event) {
    return event >= Event::kApplied && event <= Event::kLossNotFinite;
  }
  /// One event of each kind that a life may refuse.
  static constexpr Event kRefusable[] = {Event::kBegin, Event::kRepeat, Event::kApplied,
                                         Event::kBeginCommit, Event::kRetract};

  bool HappenAlone(Event event) {
    bool as_expected = true;
    if (event == Event::kResume) {
      const auto commit = std::ranges::find(heads_, *history_.newest(), &Begun::first);
      life_ = Life(TwoModules(), rules_, {});
      life_.Adopt(commit->second);
    } else if (IsEnd(event)) {
      as_expected = End(event);
    } else {
      Tell(event);
    }
    history_.Add(event);
    ++length_;
    return as_expected;
  }

  bool Permits(Event event) const {
    switch (event) {
      case Event::kBegin:
        return life_.CheckBegin().ok();
      case Event::kRepeat:
        return life_.CheckRepeat().ok();
      case Event::kApplied:
        return life_.open() && life_.CheckEnd().ok();
      case Event::kBeginCommit:
        return life_.CheckCommit().ok();
      default:
        return life_.CheckRetract().ok() && !life_.commits().pending() && life_.retractable();
    }
  }

  /// Ends a step as a training would. Returns whether it became of the step what had to.
  bool End(Event event) {
    if (rules_.losses != LossReports::kNever) life_.ForwardDone(event != Event::kLossNotFinite);
    const GradientNorm::Value gradient{
        .norm = event == Event::kZero ? 0 : (event == Event::kOverflow ? kInfinity : 8),
        .finite = event != Event::kOverflow};
    const double scale = life_.scale_of_step();
    const Result<StepDecision> decision = life_.Decide(gradient);
    if (!decision.ok()) {
      static_cast<void>(life_.Keep(decision.status()));
      life_.DropStep();
      return event == Event::kOverflow && !rules_.step.skips_overflow;
    }
    const bool updates = event == Event::kApplied || event == Event::kZero;
    const bool as_expected = decision->skip == !updates &&
                             decision->grad_norm == gradient.norm / scale &&
                             (decision->skip || decision->grad_scale == 1 / scale);
    life_.EndStep(*decision);
    return as_expected;
  }

  void Tell(Event event) {
    switch (event) {
      case Event::kBegin:
        return life_.BeginStep();
      case Event::kRepeat:
        return life_.RepeatStep();
      case Event::kDropFinite:
      case Event::kDropNotFinite:
        life_.ForwardDone(event == Event::kDropFinite);
        return life_.DropStep();
      case Event::kDropSilent:
        return life_.DropStep();
      case Event::kPass:
        return static_cast<void>(life_.PassOver(life_.counts().step + kPassed));
      case Event::kBeginCommit:
        heads_.emplace_back(length_, life_.BeginCommit());
        return;
      case Event::kCommitMade:
        return life_.EndCommit({});
      case Event::kCommitFailed:
        return life_.EndCommit(MakeError(ErrorCode::kIo, "the drive is gone"));
      case Event::kRetract:
      case Event::kRetractAlone:
        return life_.Retract(event == Event::kRetract);
      default:
        return;
    }
  }

  LifeRules rules_;
  Life life_;
  History history_;
  size_t length_ = 0;  ///< of the history
  /// Where a commit was begun in it, and what it keeps.
  using Begun = std::pair<size_t, offload::CommitHead>;
  std::vector<Begun> heads_;
};

struct Search {
  LifeRules rules;
  std::vector<Event> events;
  int length = 7;
};

/// Goes through all orders of the events. An event that is refused changes nothing, so what would
/// follow it is an order without it.
template <typename Life>
class Searcher {
 public:
  explicit Searcher(const Search& search) : search_(search) {}

  /// Returns the first order in which life and history differ, and in what.
  std::optional<std::string> Run() { return From(Lives<Life>(search_.rules), 0); }
  uint64_t orders() const { return orders_; }
  uint64_t doubtful() const { return doubtful_; }
  uint64_t retractable() const { return retractable_; }
  uint64_t stopped() const { return stopped_; }

 private:
  std::optional<std::string> From(const Lives<Life>& lives, int depth) {
    if (depth == search_.length) return std::nullopt;
    if (depth == kShared && ++shares_ % kSearchStride != 0) return std::nullopt;
    for (const Event event : search_.events) {
      if (!lives.Takes(event)) continue;
      Lives<Life> next = lives;
      order_.push_back(event);
      if (!next.Happen(event)) return Say("what becomes of the last");
      Count(next.history());
      const std::string what = next.Difference(/*with_end=*/depth < kShared);
      if (!what.empty()) return Say(what);
      if (std::optional<std::string> found = From(next, depth + 1)) return found;
      order_.pop_back();
    }
    return std::nullopt;
  }

  void Count(const History& history) {
    ++orders_;
    doubtful_ += history.doubtful() ? 1 : 0;
    retractable_ += history.retractable() ? 1 : 0;
    stopped_ += history.Stops() ? 1 : 0;
  }

  std::string Say(const std::string& what) const {
    std::string said = what + ", after events";
    for (const Event event : order_) said += " " + std::to_string(static_cast<int>(event));
    return said;
  }

  static constexpr int kShared = 4;  ///< a sanitizer follows a share of orders this long
  const Search& search_;
  std::vector<Event> order_;
  uint64_t shares_ = 0;
  uint64_t orders_ = 0;
  uint64_t doubtful_ = 0;
  uint64_t retractable_ = 0;
  uint64_t stopped_ = 0;
};

/// Limits that a few events reach.
constexpr StreakLimits kLow{.skipped = 3, .losses_not_finite = 2, .zero_gradients = 2};

LifeRules Rules(bool skips_overflow) {
  return {.step = {.gradient_clipping = 0, .skips_overflow = skips_overflow},
          .loss_scaling = {},
          .limits = kLow};
}

const std::vector<Event> kOfCommits = {
    Event::kBegin,        Event::kApplied,       Event::kLossNotFinite, Event::kDropFinite,
    Event::kOverflow,     Event::kDropNotFinite, Event::kBeginCommit,   Event::kCommitMade,
    Event::kCommitFailed, Event::kRetract,       Event::kRetractAlone,  Event::kResume};
const std::vector<Event> kOfSteps = {Event::kApplied,       Event::kZero,       Event::kOverflow,
                                     Event::kLossNotFinite, Event::kRepeat,     Event::kDropSilent,
                                     Event::kPass,          Event::kCommitMade, Event::kResume};
const std::vector<Event> kOfCallers = {
    Event::kBegin,        Event::kApplied,     Event::kOverflow,
    Event::kDropSilent,   Event::kBeginCommit, Event::kCommitMade,
    Event::kCommitFailed, Event::kPass,        Event::kResume};

/// A dynamic scale that a few steps double and exhaust.
Search WithScale(int64_t hysteresis) {
  Search search{.rules = Rules(true), .events = kOfSteps};
  search.rules.loss_scaling = config::LossScaling{.initial_scale_power = 3,
                                                  .loss_scale_window = 2,
                                                  .hysteresis = hysteresis,
                                                  .min_loss_scale = 4};
  return search;
}

/// The longest orders are those of the trainings that there are: without a loss scale, with one,
/// and of a caller. Then a rule is another one each time.
std::vector<Search> Searches() {
  Search of_callers{.rules = Rules(true), .events = kOfCallers};
  of_callers.rules.losses = LossReports::kNever;
  of_callers.rules.commits_within_steps = true;
  of_callers.rules.resumes_streaks = false;
  std::vector<Search> others = {{.rules = Rules(false), .events = kOfCommits},
                                {.rules = Rules(true), .events = kOfCommits},
                                {.rules = Rules(true), .events = kOfSteps},
                                WithScale(1),
                                WithScale(1),
                                WithScale(2)};
  others[1].rules.two_slots = false;
  others[4].rules.loss_scaling->loss_scale = 1024;
  others[5].rules.loss_scaling->consecutive_hysteresis = true;
  for (Search& search : others) search.length = 6;
  std::vector<Search> searches = {
      {.rules = Rules(true), .events = kOfCommits}, WithScale(2), of_callers};
  searches.insert(searches.end(), others.begin(), others.end());
  return searches;
}

TEST(StepLifeTest, InEveryOrderOfEventsItIsWhatTheHistorySays) {
  uint64_t orders = 0;
  uint64_t doubtful = 0;
  uint64_t retractable = 0;
  uint64_t stopped = 0;
  for (const Search& search : Searches()) {
    Searcher<StepLife> searcher(search);
    const std::optional<std::string> found = searcher.Run();
    ASSERT_FALSE(found) << *found;
    orders += searcher.orders();
    doubtful += searcher.doubtful();
    retractable += searcher.retractable();
    stopped += searcher.stopped();
  }
  EXPECT_GT(orders, SearchShare(1000000));
  EXPECT_GT(doubtful, SearchShare(1000));
  EXPECT_GT(retractable, SearchShare(1000));
  EXPECT_GT(stopped, SearchShare(1000));
}

/// A life whose caller finds by itself that a gradient is not finite.
struct SkippedByItsCaller : StepLife {
  using StepLife::StepLife;
  Result<StepDecision> Decide(const GradientNorm::Value& gradient) {
    finite_ = gradient.finite;
    return StepLife::Decide(gradient);
  }
  void EndStep(const StepDecision& decision) {
    if (finite_) {
      StepLife::EndStep(decision);
    } else {
      SkipStep();
    }
  }

 private:
  bool finite_ = true;
};

TEST(StepLifeTest, AStepThatItsCallerSkipsIsOneWhoseGradientIsNotFinite) {
  for (Search search : Searches()) {
    search.length = 4;
    const std::optional<std::string> found = Searcher<SkippedByItsCaller>(search).Run();
    EXPECT_FALSE(found) << *found;
  }
}

// Lives with one wrong rule each.

struct SkippedStepsCountAsUpdates : StepLife {
  using StepLife::StepLife;
  void EndStep(StepDecision decision) {
    decision.skip = false;
    StepLife::EndStep(decision);
  }
};

struct LossesOfDroppedStepsSayNothing : StepLife {
  using StepLife::StepLife;
  void ForwardDone(bool finite) { finite_ = finite; }
  Result<StepDecision> Decide(const GradientNorm::Value& gradient) {
    if (finite_) StepLife::ForwardDone(*finite_);
    return StepLife::Decide(gradient);
  }

 private:
  std::optional<bool> finite_;
};

struct ACommitCountsBeforeItIsDurable : StepLife {
  using StepLife::StepLife;
  CommitLife commits() const {
    CommitLife early = StepLife::commits();
    if (early.pending()) early.MadeDurable();
    return early;
  }
};

struct ADoubtfulCommitIsCommittedOver : StepLife {
  using StepLife::StepLife;
  Status CheckCommit() const {
    Status refused = StepLife::CheckCommit();
    const bool doubt = !refused.ok() && failure().ok() && commits().doubtful();
    return doubt && !open() && !commits().pending() ? Status() : refused;
  }
};

struct AFailedCommitIsKept : StepLife {
  using StepLife::StepLife;
  void EndCommit(const Status&) { StepLife::EndCommit({}); }
};

struct AResumedScaleBeginsAnew : StepLife {
  using StepLife::StepLife;
  void Adopt(offload::CommitHead head) {
    head.loss_scale.reset();
    StepLife::Adopt(head);
  }
};

struct AResumeEndsAStreak : StepLife {
  using StepLife::StepLife;
  void Adopt(offload::CommitHead head) {
    head.skipped_in_a_row = 0;
    StepLife::Adopt(head);
  }
};

struct AnUnscaledNormIsTheScaledOne : StepLife {
  using StepLife::StepLife;
  Result<StepDecision> Decide(const GradientNorm::Value& gradient) const {
    return StepLife::Decide(gradient, {.gradient_clipping = {}, .loss_scale = 1});
  }
};

struct AStepIsRepeatedAgain : StepLife {
  using StepLife::StepLife;
  void EndStep(const StepDecision& decision) {
    skipped_ = decision.skip;
    StepLife::EndStep(decision);
  }
  Status CheckRepeat() const {
    const bool between = !open() && failure().ok();
    return between && skipped_ ? Status() : StepLife::CheckRepeat();
  }

 private:
  bool skipped_ = false;
};

template <typename Mutant>
void ExpectFound() {
  bool found = false;
  for (Search search : Searches()) {
    search.length = 4;
    found = found || Searcher<Mutant>(search).Run();
  }
  EXPECT_TRUE(found);
}

TEST(StepLifeTest, EveryRuleThatIsWrongIsFound) {
  ExpectFound<SkippedStepsCountAsUpdates>();
  ExpectFound<LossesOfDroppedStepsSayNothing>();
  ExpectFound<ACommitCountsBeforeItIsDurable>();
  ExpectFound<ADoubtfulCommitIsCommittedOver>();
  ExpectFound<AFailedCommitIsKept>();
  ExpectFound<AResumedScaleBeginsAnew>();
  ExpectFound<AResumeEndsAStreak>();
  ExpectFound<AnUnscaledNormIsTheScaledOne>();
  ExpectFound<AStepIsRepeatedAgain>();
}

TEST(StepLifeTest, TheOrderOfAStepIsPlannedWhenItEndsAndNotWhenItIsDroppedOrSkippedByItsCaller) {
  LifeRules rules = Rules(true);
  rules.losses = LossReports::kNever;
  StepLife life(TwoModules(), rules, {});
  life.FillAll();
  const auto step_backwards = [&] {
    life.BeginStep();
    for (const uint32_t module : {1, 0}) life.Use(ModuleId{module});
    for (const uint32_t module : {0, 1}) life.Reduce(ModuleId{module});
  };
  step_backwards();
  life.DropStep();
  EXPECT_GT(life.late_uses(), 0U);
  life.BeginStep();
  life.SkipStep();
  step_backwards();
  const std::optional<StepOrder> order = life.EndStep({});
  ASSERT_TRUE(order);
  EXPECT_EQ(order->uses[0].module, ModuleId{1});
  EXPECT_EQ(order->gradients[0], ModuleId{0});
  step_backwards();
  EXPECT_FALSE(life.EndStep({})) << "it is planned";
}

TEST(StepLifeTest, NothingHappensBeforeEveryModuleIsFilled) {
  StepLife life(TwoModules(), Rules(true), {});
  for (const uint32_t module : {0, 1}) {
    EXPECT_FALSE(life.filled());
    EXPECT_EQ(life.unfilled(), 2 - module);
    EXPECT_EQ(life.FirstUnfilled(), ModuleId{module});
    EXPECT_FALSE(life.CheckBegin().ok());
    EXPECT_FALSE(life.CheckRepeat().ok());
    EXPECT_FALSE(life.CheckCommit().ok());
    EXPECT_FALSE(life.PassOver(1).ok());
    life.Fill(ModuleId{module});
    EXPECT_TRUE(life.filled(ModuleId{module}));
  }
  EXPECT_TRUE(life.CheckBegin().ok());

  StepLife without_modules({}, Rules(true), {});
  EXPECT_FALSE(without_modules.filled());
  without_modules.FillAll();
  EXPECT_TRUE(without_modules.filled());
}

TEST(StepLifeTest, StepsThatWereMadeElsewhereAreSaidBeforeTheFirstAlone) {
  StepLife life(TwoModules(), Rules(true), {.seed = 7});
  EXPECT_FALSE(life.BeginAt(3, 4).ok());
  EXPECT_FALSE(life.BeginAt(offload::kMaxSteps, 4).ok());
  ASSERT_TRUE(life.BeginAt(5, 4).ok());
  EXPECT_EQ(life.counts(), (offload::CommitHead{.step = 5, .optimizer_steps = 4, .seed = 7}));
  EXPECT_FALSE(life.BeginAt(5, 4).ok());
  StepLife continued(TwoModules(), Rules(true), {});
  continued.Adopt({});
  EXPECT_FALSE(continued.BeginAt(5, 4).ok());
}

TEST(StepLifeTest, TheFirstFailureStaysAndWhatACallerCanMendIsNone) {
  StepLife life(TwoModules(), Rules(true), {});
  life.FillAll();
  EXPECT_FALSE(life.Keep(MakeError(ErrorCode::kInvalidArgument, "misuse")).ok());
  EXPECT_TRUE(life.CheckBegin().ok());
  EXPECT_FALSE(life.Keep(MakeError(ErrorCode::kIo, "first")).ok());
  life.Fail(MakeError(ErrorCode::kIo, "second"));
  for (const Status& refused : {life.CheckBegin(), life.CheckCommit(), life.failure()}) {
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().message, "first");
  }
}

TEST(StepLifeTest, TheFirstStepThatEndsDecidesWhetherStepsReportTheirLoss) {
  for (const bool reports : {true, false}) {
    LifeRules rules = Rules(true);
    rules.losses = LossReports::kAsFirstStep;
    StepLife life(TwoModules(), rules, {});
    life.FillAll();
    life.BeginCommit();
    life.EndCommit({});
    EXPECT_TRUE(life.CheckCommit().ok()) << "no step says yet that a loss is to come";
    life.BeginStep();
    life.ForwardDone(true);
    life.DropStep();
    EXPECT_EQ(life.losses(), LossReports::kAsFirstStep) << "a step that is dropped decides nothing";
    life.BeginStep();
    if (reports) life.ForwardDone(true);
    life.EndStep({});
    EXPECT_EQ(life.losses(), reports ? LossReports::kEachStep : LossReports::kNever);
    life.BeginCommit();
    life.EndCommit({});
    EXPECT_EQ(life.commits().unproven(), reports);
  }
}

TEST(StepLifeTest, WhatACallerSaysOfAStepTakesThePlaceOfTheRules) {
  LifeRules rules = Rules(true);
  rules.losses = LossReports::kNever;
  rules.step.gradient_clipping = 1;
  StepLife life(TwoModules(), rules, {});
  life.FillAll();
  life.BeginStep();
  const GradientNorm::Value gradient{.norm = 8, .finite = true};
  EXPECT_EQ(life.Decide(gradient)->grad_scale, 1 / (8 + 1e-6));
  const Result<StepDecision> of_caller =
      life.Decide(gradient, {.gradient_clipping = 2, .loss_scale = 2});
  EXPECT_EQ(of_caller->grad_norm, 4);
  EXPECT_EQ(of_caller->grad_scale, 1 / ((4 + 1e-6) / 2) / 2);
}

}  // namespace
}  // namespace penstock::zero
