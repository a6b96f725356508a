// Steps of a session that do not count: dropped, skipped or passed over.
#include <gmock/gmock.h>

#include <limits>

#include "tests/deadline.h"
#include "tests/zero/session/session_support.h"
#include "zero/lr_schedule.h"
#include "zero/session/session.h"

namespace penstock::zero {
namespace {

using ::testing::HasSubstr;

class SessionSkipTest : public SessionTest {};

TEST_F(SessionSkipTest, ADroppedStepChangesNoBitWhereverItEnds) {
  for (const Placement& placement : {kDevice, kHost, kNvme, kNvmeWithGradients}) {
    const auto train = [&](bool with_drops, Outcome& outcome) {
      {
        const auto run = Begin(Options(placement));
        for (uint64_t t = 1; t <= 4; ++t) {
          // Each time it gets further; its loss is not known, so that no update has begun.
          for (uint32_t modules = 0; with_drops && modules <= kLayers + 2; ++modules) {
            auto step = run->session().BeginStep();
            ASSERT_TRUE(step.ok()) << step.error().message;
            for (uint32_t module = 0; module < modules; ++module) {
              auto use = step->Acquire(ModuleId{module});
              ASSERT_TRUE(use.ok()) << use.error().message;
              ASSERT_TRUE(run->AddGradient(*step, *use, 3.0F).ok());
              // The last one is still in use, and not reduced.
              if (module + 1 == modules) continue;
              use->Release();
              ASSERT_TRUE(run->ReduceGradients(*step, ModuleId{module}).ok());
            }
          }
          const auto done = run->Step(t, 1.0F);
          ASSERT_TRUE(done.ok()) << placement.name << ": " << done.error().message;
          EXPECT_EQ(done->step, t);
          outcome.norms.push_back(done->grad_norm);
        }
        ASSERT_TRUE(run->session().Commit("{}").ok());
        state_paths_ = run->session().state_paths();
      }
      ReadStates(&outcome);
    };
    Outcome plain;
    Outcome dropped;
    train(false, plain);
    train(true, dropped);
    ExpectSameBits(dropped, plain, placement.name);
  }
}

TEST_F(SessionSkipTest, AStepThatIsDroppedAfterItsUpdatesBeganEndsTheTrainingAndSaysHowToResume) {
  Placement placement = kNvmeWithGradients;
  placement.smallest_host = false;
  const auto run = Begin(Options(placement));
  {
    auto step = run->session().BeginStep();
    ASSERT_TRUE(step.ok());
    step->ReportLoss(1);
    auto use = step->Acquire(ModuleId{1});
    ASSERT_TRUE(use.ok());
    ASSERT_TRUE(run->AddGradient(*step, *use, 1.0F).ok());
    ASSERT_TRUE(run->ReduceGradients(*step, ModuleId{1}).ok());
    ASSERT_TRUE(BecomesTrue([&] { return run->session().counters().updates > 0; }));
    const Status dropped = step->Drop();
    ASSERT_FALSE(dropped.ok());
    EXPECT_THAT(dropped.error().message, HasSubstr("resume from the last commit"));
  }
  EXPECT_FALSE(run->session().BeginStep().ok());
}

TEST_F(SessionSkipTest, AStepWhoseLossIsNotFiniteIsSkippedAndChangesNoBit) {
  for (const Placement& placement : {kDevice, kHost, kNvme, kNvmeWithGradients}) {
    const auto train = [&](bool with_skips, Outcome& outcome) {
      {
        const auto run = Begin(Options(placement));
        for (uint64_t t = 1; t <= 4; ++t) {
          if (with_skips) {
            // Not two in a row, which would end the training.
            const double loss = t % 2 == 0 ? kNaN : std::numeric_limits<double>::infinity();
            const auto skipped = run->Step(t, 3.0F, loss);
            ASSERT_TRUE(skipped.ok()) << placement.name << ": " << skipped.error().message;
            EXPECT_TRUE(skipped->skipped);
          }
          const auto done = run->Step(t, 1.0F);
          ASSERT_TRUE(done.ok()) << placement.name << ": " << done.error().message;
          EXPECT_FALSE(done->skipped);
          outcome.norms.push_back(done->grad_norm);
        }
        EXPECT_EQ(run->session().state().step, with_skips ? 8 : 4);
        EXPECT_EQ(run->session().state().optimizer_steps, 4);
        ASSERT_TRUE(run->session().Commit("{}").ok());
        state_paths_ = run->session().state_paths();
      }
      ReadStates(&outcome);
    };
    Outcome plain;
    Outcome skipped;
    train(false, plain);
    train(true, skipped);
    ExpectSameBits(skipped, plain, placement.name);
  }
}

TEST_F(SessionSkipTest, TwentySkippedStepsInARowEndTheTraining) {
  EngineOptions options = Options(kHost);
  options.config.check_grad_overflow = true;
  const auto run = Begin(options);
  for (uint64_t i = 0; i < kMaxSkippedInARow; ++i) {
    EXPECT_TRUE(run->session().CheckSkips().ok());
    ASSERT_TRUE(run->Step(1, std::numeric_limits<float>::infinity()).ok()) << i;
  }
  EXPECT_EQ(run->session().CheckSkips().error().code, ErrorCode::kNumeric);
  const auto next = run->session().BeginStep();
  ASSERT_FALSE(next.ok());
  EXPECT_THAT(next.error().message, HasSubstr("20 steps in a row"));
}

TEST_F(SessionSkipTest, TwoLossesInARowThatAreNotFiniteEndTheTraining) {
  const auto run = Begin(Options(kHost));
  for (const double loss : {kNaN, 1.0, kNaN, kNaN}) {
    EXPECT_TRUE(run->session().CheckSkips().ok());
    ASSERT_TRUE(run->Step(run->session().state().optimizer_steps + 1, 1.0F, loss).ok());
  }
  EXPECT_EQ(run->session().CheckSkips().error().code, ErrorCode::kNumeric);
  const auto next = run->session().BeginStep();
  ASSERT_FALSE(next.ok());
  EXPECT_THAT(next.error().message, HasSubstr("step 4: the losses of 2 steps in a row"));
}

TEST_F(SessionSkipTest, StepsAreOnlyPassedOverBetweenStepsAndForward) {
  const auto run = Begin(Options(kHost));
  Session& session = run->session();
  ASSERT_TRUE(run->Step(1, 1.0F).ok());
  ASSERT_TRUE(session.PassOver(3).ok());
  EXPECT_EQ(session.PassOver(3).error().code, ErrorCode::kInvalidArgument);
  {
    const auto step = session.BeginStep();
    ASSERT_TRUE(step.ok());
    EXPECT_EQ(session.PassOver(5).error().code, ErrorCode::kInvalidArgument);
  }
  const auto done = run->Step(2, 1.0F);
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_EQ(done->step, 4);
  EXPECT_EQ(session.state().optimizer_steps, 2);
}

TEST_F(SessionSkipTest, TheLearningRateFollowsTheUpdatesAndNotTheSteps) {
  EngineOptions options = Options(kHost);
  options.config.scheduler.type = config::SchedulerType::kWarmupLr;
  options.config.scheduler.warmup_num_steps = 10;
  options.config.scheduler.warmup_type = config::WarmupType::kLinear;
  const auto run = Begin(options);
  for (uint64_t step = 1, t = 1; step <= 6; ++step) {
    const bool skip = step % 3 == 0;
    const auto done = run->Step(t, 1.0F, skip ? kNaN : 1.0);
    ASSERT_TRUE(done.ok());
    EXPECT_EQ(done->step, step);
    EXPECT_EQ(done->lr, LearningRate(options.config.scheduler, 1e-2, t));
    if (!skip) ++t;
  }
}

}  // namespace
}  // namespace penstock::zero
