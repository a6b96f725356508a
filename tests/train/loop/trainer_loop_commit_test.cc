// The loop over steps: when it commits, and what a failure leaves of that.
#include <gmock/gmock.h>

#include "tests/train/loop/trainer_loop_support.h"

namespace penstock::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

TEST_F(TrainLoopTest, AFailureAfterACommitSaysWhichStepIsCommitted) {
  options_.config.commit_every_steps = 2;
  engine_.fail_steps_from = 4;
  const Result<LoopSummary> durable = Run(5);
  ASSERT_FALSE(durable.ok());
  EXPECT_EQ(durable.error().code, ErrorCode::kIo);
  EXPECT_THAT(durable.error().message, HasSubstr("a bad block; step 2 is committed"));
  EXPECT_EQ(Rows().size(), 3U);
}

TEST_F(TrainLoopTest, ARunWhoseFolderIsGoneAtACommitEndsThereAndSaysWhatIsCommitted) {
  options_.config.commit_every_steps = 2;
  run_.gone_after = 3;
  EXPECT_TRUE(
      FailsWith(Run(8), ErrorCode::kNotFound, {"RUN was removed", "step 4 is committed in"}));
  EXPECT_THAT(CommittedSteps(), ElementsAre(0, 2, 4));
}

TEST_F(TrainLoopTest, AFailureDoesNotCallACommitMadeThatIsLost) {
  options_.config.commit_every_steps = 2;
  engine_.fail_steps_from = 4;
  engine_.commit_is_lost = true;
  const Result<LoopSummary> summary = Run(5);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.error().code, ErrorCode::kIo);
  EXPECT_THAT(summary.error().message, HasSubstr("step 2 was committed"));
  EXPECT_THAT(summary.error().message,
              HasSubstr("that commit is lost: the state file was deleted"));
}

TEST_F(TrainLoopTest, ACommitThatCannotBeReadBackIsLostOnlyWhereItsFileIsGoneOrDamaged) {
  options_.config.commit_every_steps = 2;
  engine_.fail_steps_from = 4;
  const std::pair<ErrorCode, bool> causes[] = {
      {ErrorCode::kNotFound, true},    {ErrorCode::kCorruption, true},
      {ErrorCode::kPermission, false}, {ErrorCode::kOutOfMemory, false},
      {ErrorCode::kIo, false},         {ErrorCode::kUnavailable, false}};
  for (const auto& [code, lost] : causes) {
    engine_.steps.clear();
    engine_.commit_unreadable = MakeError(code, "the reason");
    std::filesystem::remove(folder_.Path("metrics.jsonl"));
    const Result<LoopSummary> summary = Run(5);
    ASSERT_FALSE(summary.ok());
    EXPECT_THAT(summary.error().message,
                AllOf(HasSubstr("step 2 was committed"), HasSubstr(": the reason")));
    EXPECT_EQ(summary.error().message.find("lost") != std::string::npos, lost)
        << summary.error().message;
  }
}

TEST_F(TrainLoopTest, AFailureSaysOnceWhyACommitCannotBeReadBack) {
  options_.config.commit_every_steps = 2;
  engine_.fail_steps_from = 4;
  engine_.commit_unreadable = MakeError(ErrorCode::kIo, "a bad block");
  const Result<LoopSummary> summary = Run(5);
  ASSERT_FALSE(summary.ok());
  EXPECT_THAT(summary.error().message, HasSubstr("a bad block; step 2 was committed"));
  EXPECT_EQ(summary.error().message.find("a bad block"),
            summary.error().message.rfind("a bad block"));
}

TEST_F(TrainLoopTest, ANumericFailureNamesResumeOnlyWhereTheCommitStands) {
  model_.nan_from = 4;  // the commit of step 2 was confirmed before
  options_.config.commit_every_steps = 2;
  for (const bool durable : {false, true}) {
    for (const bool lost : {false, true}) {
      options_.config.durable = durable;
      engine_.commit_is_lost = lost;
      model_.inputs.clear();
      std::filesystem::remove(folder_.Path("metrics.jsonl"));
      const Result<LoopSummary> summary = Run(5);
      ASSERT_FALSE(summary.ok());
      const std::string& message = summary.error().message;
      EXPECT_EQ(summary.error().code, ErrorCode::kNumeric);
      EXPECT_EQ(message.find("step 2 is committed") != std::string::npos, !lost) << message;
      EXPECT_EQ(message.find("--resume") != std::string::npos, !lost) << message;
      EXPECT_EQ(message.find("begin a new run:") != std::string::npos, lost) << message;
      EXPECT_EQ(message.find("discards a commit") != std::string::npos, lost && !durable)
          << message;
    }
  }
}

TEST_F(TrainLoopTest, ATrainingWhoseLastCommitIsLostDoesNotSucceed) {
  engine_.commit_is_lost = true;
  const Result<LoopSummary> summary = Run(2);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.error().code, ErrorCode::kNotFound);
}

TEST_F(TrainLoopTest, AFailureOfARunThatIsNotDurableDoesNotPromiseItsCommit) {
  options_.config.durable = false;
  options_.config.commit_every_steps = 2;
  engine_.fail_steps_from = 4;
  engine_.commit_is_lost = true;
  const Result<LoopSummary> summary = Run(5);
  ASSERT_FALSE(summary.ok());
  EXPECT_THAT(summary.error().message, HasSubstr("step 2 was committed, but"));
}

TEST_F(TrainLoopTest, NoCommitIsMadeWhileLossesOrGradientsAreNotFinite) {
  options_.config.commit_every_steps = 1;
  engine_.skip = {false, true, true, false};
  ASSERT_TRUE(Run(5).ok());
  EXPECT_THAT(CommittedSteps(), ElementsAre(0, 1, 4, 5));
}

TEST_F(TrainLoopTest, ACommitThatIsDueAtAStepThatIsNotSoundIsMadeAtTheNextThatIs) {
  options_.config.commit_every_steps = 4;
  engine_.skip = {false, false, false, true, true};
  ASSERT_TRUE(Run(11).ok());
  EXPECT_THAT(CommittedSteps(), ElementsAre(0, 6, 8, 11));
}

TEST_F(TrainLoopTest, WeightsThatGaveAFiniteLossAreCommittedLastThoughTheNextLossIsNotFinite) {
  engine_.skip = {false, false, true, true};  // steps 3 and 4 are computed with the same weights
  model_.nan_from = 4;
  for (const bool asked_to_stop : {false, true}) {
    engine_.steps.clear();
    engine_.commits.clear();
    model_.inputs.clear();
    std::filesystem::remove(folder_.Path("metrics.jsonl"));
    if (asked_to_stop) stop_after_ = 4;
    const Result<LoopSummary> summary = Run(asked_to_stop ? 100 : 4);
    ASSERT_TRUE(summary.ok()) << summary.error().message;
    EXPECT_THAT(CommittedSteps(), ElementsAre(0, 4));
    EXPECT_EQ(engine_.commits[1].optimizer_steps, 2U);
  }
}

TEST_F(TrainLoopTest, WeightsWhoseOnlyLossIsNotFiniteAreNotCommittedLast) {
  engine_.skip = {false, false, true};
  model_.nan_from = 3;
  for (const bool asked_to_stop : {false, true}) {
    engine_.steps.clear();
    engine_.commits.clear();
    model_.inputs.clear();
    std::filesystem::remove(folder_.Path("metrics.jsonl"));
    if (asked_to_stop) stop_after_ = 3;
    EXPECT_TRUE(FailsWith(Run(asked_to_stop ? 100 : 3), ErrorCode::kNumeric,
                          {"step 3: the loss is not finite", "step 0 is committed"}));
    EXPECT_THAT(CommittedSteps(), ElementsAre(0));
  }
}

TEST_F(TrainLoopTest, ASecondLossInARowThatIsNotFiniteSpeaksAgainstTheWeights) {
  engine_.skip = {false, true, true};
  model_.nan_from = 2;
  const Result<LoopSummary> summary = Run(3);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.error().code, ErrorCode::kNumeric);
  EXPECT_THAT(summary.error().message, HasSubstr("step 0 is committed"));
  EXPECT_THAT(CommittedSteps(), ElementsAre(0));
}

TEST_F(TrainLoopTest,
       AfterLossesThatAreNotFiniteTheLastConfirmedCommitIsTheNewestWhateverEndsTheRun) {
  options_.config.commit_every_steps = 1;
  for (const bool asked_to_stop : {false, true}) {
    engine_.commits.clear();
    model_.inputs.clear();
    model_.nan_from = 3;
    if (asked_to_stop) stop_after_ = 4;
    std::filesystem::remove(folder_.Path("metrics.jsonl"));
    const Result<LoopSummary> summary = Run(asked_to_stop ? 100 : 4);
    ASSERT_FALSE(summary.ok());
    EXPECT_EQ(summary.error().code, ErrorCode::kNumeric);
    EXPECT_THAT(
        summary.error().message,
        AllOf(HasSubstr("step 4: the losses of 2 steps in a row are not finite"),
              HasSubstr("the commit of step 2 was taken back"), HasSubstr("step 1 is committed"),
              HasSubstr("--resume --change optimizer.params.lr=")));
    EXPECT_THAT(CommittedSteps(), ElementsAre(0, 1));
    EXPECT_EQ(Rows().size(), 4U);
  }
}

TEST_F(TrainLoopTest, ACommitInDoubtIsNotedBeforeTheNextLossAndNoLongerWhenItIsTakenBack) {
  options_.config.commit_every_steps = 1;
  model_.nan_from = 3;
  EXPECT_FALSE(Run(9).ok());
  EXPECT_THAT(run_.doubts, ElementsAre(std::pair(2, 2), std::pair(-1, 1)));
}

TEST_F(TrainLoopTest, ACommitInDoubtIsNotedAlsoByARunThatSkipsNoSteps) {
  options_.config.check_grad_overflow = false;
  options_.config.commit_every_steps = 1;
  engine_.skip = {false, false, true};
  model_.nan_from = 3;
  EXPECT_TRUE(FailsWith(Run(9), ErrorCode::kNumeric,
                        {"the gradient is not finite", "the commit of step 2 was taken back",
                         "step 1 is committed"}));
  EXPECT_THAT(run_.doubts, ElementsAre(std::pair(2, 2), std::pair(-1, 1)));
}

TEST_F(TrainLoopTest, ACommitWhoseFirstLossAfterAResumeIsNotFiniteIsNamedAndNoted) {
  engine_.skip = {true, true};
  model_.nan_from = 1;
  for (const bool skips : {true, false}) {
    options_.config.check_grad_overflow = skips;
    engine_.resumes = zero::TrainState{{.step = 3, .optimizer_steps = 3}, {}};
    engine_.steps.clear();
    engine_.commits.clear();
    model_.inputs.clear();
    run_.doubts.clear();
    std::filesystem::remove(folder_.Path("metrics.jsonl"));
    EXPECT_TRUE(FailsWith(Run(9), ErrorCode::kNumeric,
                          {"step 3 is committed in", "no loss since the resume was finite"}));
    EXPECT_THAT(run_.doubts, ElementsAre(std::pair(3, 3)));
  }
}

TEST_F(TrainLoopTest, AResumedCommitWithAFiniteLossIsNotInDoubtThoughTheGradientEndsTheRun) {
  options_.config.check_grad_overflow = false;
  engine_.resumes = zero::TrainState{{.step = 3, .optimizer_steps = 3}, {}};
  engine_.skip = {true};
  EXPECT_TRUE(FailsWith(Run(9), ErrorCode::kNumeric,
                        {"step 3 is committed in", "--resume repeats the steps after it"}));
  EXPECT_THAT(run_.doubts, ::testing::IsEmpty());
}

TEST_F(TrainLoopTest, AResumedRunThatIsNotDurableIsNotToldOfACommitBefore) {
  options_.config.durable = false;
  engine_.resumes = zero::TrainState{{.step = 3, .optimizer_steps = 3}, {}};
  engine_.skip = {true, true};
  model_.nan_from = 1;
  const Result<LoopSummary> summary = Run(9);
  EXPECT_TRUE(FailsWith(summary, ErrorCode::kNumeric, {"--resume-from SNAPSHOT"}));
  EXPECT_THAT(summary.error().message, Not(HasSubstr("the commit before")));
}

TEST_F(TrainLoopTest, TheKeyThatDecidesTheRateIsTheOneToLower) {
  model_.nan_from = 4;
  options_.config.commit_every_steps = 2;
  options_.config.scheduler = {.type = config::SchedulerType::kWarmupLr, .warmup_max_lr = 0.5};
  EXPECT_TRUE(FailsWith(Run(5), ErrorCode::kNumeric,
                        {"--resume --change scheduler.params.warmup_max_lr=LOWER"}));
}

TEST_F(TrainLoopTest, ADamagedCommitOfADurableRunMayGiveWayToTheOneBefore) {
  options_.config.commit_every_steps = 2;
  model_.nan_from = 4;
  engine_.commit_unreadable = MakeError(ErrorCode::kCorruption, "torn");
  EXPECT_TRUE(FailsWith(
      Run(5), ErrorCode::kNumeric,
      {"--resume resumes from the commit before, if that is intact", "otherwise begin a new run"}));
}

TEST_F(TrainLoopTest, GivenWeightsAreAtFaultWhetherOrNotTheRunIsDurable) {
  engine_.skip = {true, true};
  model_.nan_from = 1;
  for (const bool durable : {true, false}) {
    options_.config.durable = durable;
    engine_.steps.clear();
    model_.inputs.clear();
    std::filesystem::remove(folder_.Path("metrics.jsonl"));
    EXPECT_TRUE(FailsWith(Run(9), ErrorCode::kNumeric, {"no update was applied to these weights"}));
  }
}

TEST_F(TrainLoopTest, AStaticScaleIsBlamedOnlyIfItsOverflowsEndTheRun) {
  options_.config.loss_scaling = config::LossScaling{.loss_scale = 128};
  options_.config.commit_every_steps = 1;
  engine_.refuse_commits_from = 2;
  const Result<LoopSummary> destroyed = Run(9);
  EXPECT_TRUE(FailsWith(destroyed, ErrorCode::kNumeric, {"destroyed", "a lower learning rate"}));
  EXPECT_THAT(destroyed.error().message, Not(HasSubstr("fp16.loss_scale")));
}

TEST_F(TrainLoopTest, NoReplayIsNamedForGradientsThatAreAllZero) {
  options_.config.loss_scaling = config::LossScaling{.loss_scale = 128};
  options_.config.commit_every_steps = 1;
  engine_.norm = 0;
  const Result<LoopSummary> zeros = Run(30);
  EXPECT_TRUE(FailsWith(zeros, ErrorCode::kNumeric, {"raise fp16.loss_scale"}));
  EXPECT_THAT(zeros.error().message, Not(HasSubstr("replay")));
}

TEST_F(TrainLoopTest, AHealthyRunNotesNoDoubt) {
  options_.config.commit_every_steps = 1;
  ASSERT_TRUE(Run(4).ok());
  EXPECT_THAT(run_.doubts, ::testing::IsEmpty());
}

TEST_F(TrainLoopTest, ASkippedLastStepWithAFiniteLossIsCommittedAsItChangedNothing) {
  engine_.skip = {false, false, true};
  ASSERT_TRUE(Run(3).ok());
  EXPECT_THAT(CommittedSteps(), ElementsAre(0, 3));
}

TEST_F(TrainLoopTest, CommitsEveryNStepsAndTheLastOnlyOnce) {
  options_.config.commit_every_steps = 2;
  ASSERT_TRUE(Run(6).ok());
  EXPECT_THAT(CommittedSteps(), ElementsAre(0, 2, 4, 6));
}

TEST_F(TrainLoopTest, CommitsAfterAsManySecondsAsTheConfigSays) {
  options_.config.commit_every_seconds = 1e-12;
  ASSERT_TRUE(Run(3).ok());
  EXPECT_THAT(CommittedSteps(), ElementsAre(0, 1, 2, 3));
}

TEST_F(TrainLoopTest, ACommitThatIsToBeKeptStaysUntilALaterLossConfirmsItAndItIsCopied) {
  options_.config.commit_every_steps = 1;
  options_.config.snapshot_every_steps = 3;
  ASSERT_TRUE(Run(7).ok());
  // After step 4 the commit of step 3 is confirmed; its copy begins in step 5.
  EXPECT_THAT(CommittedSteps(), ElementsAre(0, 1, 2, 3, 5, 6, 7));
}

TEST_F(TrainLoopTest, ASnapshotThatIsDueMakesACommitOfItsOwn) {
  options_.config.snapshot_every_steps = 3;
  ASSERT_TRUE(Run(8).ok());
  EXPECT_THAT(CommittedSteps(), ElementsAre(0, 3, 6, 8));
}

TEST_F(TrainLoopTest, ACommitThatIsToBeKeptWaitsForAStepThatIsSound) {
  options_.config.snapshot_every_steps = 3;
  engine_.skip = {false, false, true, true};
  ASSERT_TRUE(Run(9).ok());
  EXPECT_THAT(CommittedSteps(), ElementsAre(0, 5, 9));
}

TEST_F(TrainLoopTest, ACommitHoldsTheRunAndTheRowOfItsStep) {
  options_.config.commit_every_steps = 1;
  ASSERT_TRUE(Run(2).ok());
  ASSERT_EQ(engine_.commits.size(), 3U);
  EXPECT_EQ(engine_.commits[1].seed, 9U);
  EXPECT_EQ(engine_.commits[1].compute_threads, 2U);
  const Json json = Json::parse(engine_.commits[1].run_json);
  EXPECT_EQ(json.at("run").at("data"), "D");
  EXPECT_EQ(json.at("row").at("step"), 1);
  EXPECT_EQ(json.at("row").at("loss"), 9.0);
  const Json of_step_0 = Json::parse(engine_.commits[0].run_json);
  EXPECT_EQ(of_step_0.at("run").at("data"), "D");
  EXPECT_FALSE(of_step_0.contains("row"));
}

TEST_F(TrainLoopTest, ABatchThatWasChangedBeginsWhereTheOneBeforeHasEnded) {
  consumed_samples_ = 3;  // no whole micro-batches of 2
  options_.keeps_consumed_samples = true;
  ASSERT_TRUE(Run(2).ok());
  EXPECT_EQ(model_.inputs[0].front(), 3 * static_cast<int32_t>(kSequence));
  EXPECT_EQ(model_.inputs[1].front(), 7 * static_cast<int32_t>(kSequence));
  EXPECT_EQ(Json::parse(engine_.commits.back().run_json).at("consumed_samples"), 11);
}

TEST_F(TrainLoopTest, ANewRunCommitsStepZeroUnlessItsFirstUpdateWouldGiveThatUp) {
  for (const bool durable : {true, false}) {
    engine_.commits.clear();
    model_.inputs.clear();
    std::filesystem::remove(folder_.Path("metrics.jsonl"));
    options_.config.durable = durable;
    ASSERT_TRUE(Run(2).ok());
    if (durable) {
      EXPECT_THAT(CommittedSteps(), ElementsAre(0, 2));
    } else {
      EXPECT_THAT(CommittedSteps(), ElementsAre(2));
    }
  }
}

TEST_F(TrainLoopTest, WeightsThatTheFirstUpdateDestroyedGiveWayToThoseOfStepZero) {
  options_.config.commit_every_steps = 1;
  model_.nan_from = 2;
  EXPECT_TRUE(FailsWith(Run(3), ErrorCode::kNumeric,
                        {"the commit of step 1 was taken back", "step 0 is committed"}));
  EXPECT_THAT(CommittedSteps(), ElementsAre(0));
}

TEST_F(TrainLoopTest, AFailureOfTheFirstStepKeepsTheRunOnceStepZeroIsCommitted) {
  engine_.fail_steps_from = 1;
  EXPECT_TRUE(FailsWith(Run(3), ErrorCode::kIo, {"a bad block; step 0 is committed in"}));
  EXPECT_THAT(CommittedSteps(), ElementsAre(0));
  EXPECT_TRUE(run_.kept);
}

TEST_F(TrainLoopTest, AFailureIsToldBeforeTheCommitThatWasBegunIsWaitedFor) {
  model_.fail_from = 1;
  EXPECT_TRUE(
      FailsWith(Run(3), ErrorCode::kUnavailable, {"the device is gone; step 0 is committed"}));
  EXPECT_EQ(run_.commits_at_failure, 0U);
  EXPECT_THAT(CommittedSteps(), ElementsAre(0));
  EXPECT_TRUE(run_.kept);
}

TEST_F(TrainLoopTest, AFailureToCommitStepZeroLeavesNothing) {
  engine_.fail_commit = true;
  EXPECT_TRUE(FailsWith(Run(3), ErrorCode::kOutOfSpace, {"no space"}));
  EXPECT_TRUE(Rows().empty());
  EXPECT_FALSE(run_.kept);
}

TEST_F(TrainLoopTest, WhenAskedToStopFinishesTheStepAndCommitsIt) {
  stop_after_ = 2;
  const Result<LoopSummary> summary = Run(100);
  ASSERT_TRUE(summary.ok()) << summary.error().message;
  EXPECT_TRUE(summary->interrupted);
  EXPECT_EQ(summary->last_step, 2U);
  EXPECT_THAT(CommittedSteps(), ElementsAre(0, 2));
  EXPECT_EQ(Rows().size(), 2U);
}

TEST_F(TrainLoopTest, AskedToStopAfterAPeriodicCommitDoesNotCommitTwice) {
  options_.config.commit_every_steps = 2;
  stop_after_ = 2;
  ASSERT_TRUE(Run(100).ok());
  EXPECT_THAT(CommittedSteps(), ElementsAre(0, 2));
}

TEST_F(TrainLoopTest, AFailedCommitEndsTheRun) {
  options_.config.durable = false;
  engine_.fail_commit = true;
  const Result<LoopSummary> summary = Run(1);
  ASSERT_FALSE(summary.ok());
  EXPECT_EQ(summary.error().code, ErrorCode::kOutOfSpace);
  EXPECT_EQ(Rows().size(), 1U);
  EXPECT_TRUE(run_.kept);
}

}  // namespace
}  // namespace penstock::train
