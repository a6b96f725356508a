// The loss scale in a training: what it does to gradients, norms and updates, and how it is
// resumed.
#include <gmock/gmock.h>

#include <limits>

#include "tests/temp_folder.h"
#include "tests/zero/engine_support.h"

namespace penstock::zero {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class SessionLossScaleTest : public EngineTest {
 protected:
  static std::vector<Placement> Placements() {
    std::vector<Placement> placements = {
        {.name = "device", .parameters = Tier::kDevice, .optimizer = Tier::kDevice},
        {.name = "host", .parameters = Tier::kHost, .optimizer = Tier::kHost},
        {.name = "nvme"}};
    for (Placement& placement : placements) placement.dtype = DType::kFloat16;
    return placements;
  }
  static std::unique_ptr<ToyRun> Begin(const EngineOptions& options) {
    auto run = std::make_unique<ToyRun>(options, 64_MiB);
    EXPECT_TRUE(run->created().ok()) << run->created().error().message;
    return run;
  }
  EngineOptions WithRules(const Placement& placement, const config::LossScaling& rules) const {
    EngineOptions options = Options(placement);
    options.config.loss_scaling = rules;
    return options;
  }
};

TEST_F(SessionLossScaleTest, NeitherNormsNorUpdatesHaveTheScale) {
  for (const Placement& placement : Placements()) {
    Outcome first;
    for (const int64_t power : {10, 12, 14}) {
      const std::string name = placement.name + ", 2^" + std::to_string(power);
      EngineOptions options = WithRules(placement, {.initial_scale_power = power});
      Outcome outcome;
      {
        const auto run = Begin(options);
        ASSERT_TRUE(run->session().Initialize(ToyWeights).ok());
        for (uint64_t t = 1; t <= 3; ++t) {
          const auto done = run->Step(t, 1.0F);
          ASSERT_TRUE(done.ok()) << name << ": " << done.error().message;
          EXPECT_FALSE(done->skipped) << name;
          EXPECT_EQ(done->loss_scale, std::ldexp(1.0, static_cast<int>(power)));
          outcome.norms.push_back(done->grad_norm);
        }
        ASSERT_TRUE(run->session().Commit("{}").ok());
        state_paths_ = run->session().state_paths();
      }
      ReadStates(&outcome);
      // With such scales the toy's gradients are normal numbers in fp16, which a power of two only
      // shifts.
      if (power == 10) first = outcome;
      ExpectSameBits(outcome, first, name);
    }
  }
}

TEST_F(SessionLossScaleTest, AGradientThatStaysZeroInFp16EndsTheTraining) {
  for (const Placement& placement : Placements()) {
    const auto run = Begin(WithRules(placement, {.loss_scale = 1e-12}));
    ASSERT_TRUE(run->session().Initialize(ToyWeights).ok());
    for (uint64_t t = 1; t <= kMaxZeroGradients; ++t) {
      EXPECT_TRUE(run->session().CheckSkips().ok()) << placement.name << ", step " << t;
      const auto done = run->Step(t, 1.0F);
      ASSERT_TRUE(done.ok()) << done.error().message;
      EXPECT_EQ(done->grad_norm, 0) << placement.name;
    }
    EXPECT_TRUE(FailsWith(run->session().CheckSkips(), ErrorCode::kNumeric,
                          {"is zero in fp16 at loss scale 1e-12", "underflows"}));
  }
}

TEST_F(SessionLossScaleTest, AScaleThatStillGrowsIsWaitedFor) {
  const auto run = Begin(WithRules(
      Placements()[0], {.initial_scale_power = 0, .loss_scale_window = 4, .min_loss_scale = 1}));
  ASSERT_TRUE(run->session().Initialize(ToyWeights).ok());
  for (uint64_t t = 1; t <= 3 * kMaxZeroGradients; ++t) {
    const auto done = run->Step(t, 1e-30F);
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_EQ(done->grad_norm, 0);
    EXPECT_TRUE(run->session().CheckSkips().ok()) << "step " << t;
  }
}

TEST_F(SessionLossScaleTest, AnOverflowSkipsTheStepAndHalvesTheScale) {
  const config::LossScaling rules = {.initial_scale_power = 4, .hysteresis = 1};
  for (const Placement& placement : Placements()) {
    const auto run = Begin(WithRules(placement, rules));
    ASSERT_TRUE(run->session().Initialize(ToyWeights).ok());
    // Finite as the gradient is, the scale takes it beyond 65504.
    const auto skipped = run->Step(1, 1e5F);
    ASSERT_TRUE(skipped.ok()) << skipped.error().message;
    EXPECT_TRUE(skipped->skipped) << placement.name;
    EXPECT_EQ(skipped->loss_scale, 8);
    const auto done = run->Step(1, 1.0F);
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_FALSE(done->skipped) << placement.name;
    EXPECT_EQ(run->session().state().optimizer_steps, 1U);
  }
}

TEST_F(SessionLossScaleTest, AnOverflowWithTheLowestScaleEndsTheTraining) {
  const config::LossScaling rules = {.initial_scale_power = 1, .hysteresis = 1};
  for (const Placement& placement : Placements()) {
    const auto run = Begin(WithRules(placement, rules));
    ASSERT_TRUE(run->session().Initialize(ToyWeights).ok());
    ASSERT_TRUE(run->Step(1, kInfinity).ok());
    EXPECT_TRUE(run->session().CheckSkips().ok());
    ASSERT_TRUE(run->Step(1, kInfinity).ok());
    const Status ended = run->session().CheckSkips();
    ASSERT_FALSE(ended.ok()) << placement.name;
    EXPECT_EQ(ended.error().code, ErrorCode::kNumeric);
    EXPECT_THAT(ended.error().message, HasSubstr("at its minimum of 1 already"));
    EXPECT_FALSE(run->session().BeginStep().ok());
  }
}

TEST_F(SessionLossScaleTest, ACommitWithinAStreakResumesWithTheSameScales) {
  const config::LossScaling rules = {
      .initial_scale_power = 10, .loss_scale_window = 3, .hysteresis = 2};
  const std::vector<float> scales = {1, 1, kInfinity, kInfinity, kInfinity, 1, 1, 1, 1, kInfinity};
  // Of the steps from `first` on.
  const auto train = [&](ToyRun& run, size_t first, size_t last, std::vector<double>& loss_scales) {
    for (size_t i = first; i < last; ++i) {
      const auto done = run.Step(run.session().state().optimizer_steps + 1, scales[i]);
      ASSERT_TRUE(done.ok()) << done.error().message;
      loss_scales.push_back(done->loss_scale);
    }
  };
  for (const Placement& placement : Placements()) {
    std::vector<double> expected;
    {
      const auto run = Begin(WithRules(placement, rules));
      ASSERT_TRUE(run->session().Initialize(ToyWeights).ok());
      ASSERT_NO_FATAL_FAILURE(train(*run, 0, scales.size(), expected));
    }
    for (size_t cut = 1; cut < scales.size(); ++cut) {
      std::vector<double> found;
      EngineOptions options = WithRules(placement, rules);
      {
        const auto run = Begin(options);
        ASSERT_TRUE(run->session().Initialize(ToyWeights).ok());
        ASSERT_NO_FATAL_FAILURE(train(*run, 0, cut, found));
        ASSERT_TRUE(run->session().Commit("{}").ok());
        options.adopt = run->session().state_paths();
      }
      {
        const auto run = Begin(options);
        ASSERT_TRUE(run->session().Adopt().ok());
        ASSERT_NO_FATAL_FAILURE(train(*run, cut, scales.size(), found));
      }
      EXPECT_EQ(found, expected) << placement.name << ", committed after step " << cut;
      for (const std::string& path : options.adopt) std::filesystem::remove(path);
    }
  }
}

TEST_F(SessionLossScaleTest, ASkippedStepCanBeRepeatedWithItsScaleAndChangesNothing) {
  const config::LossScaling rules = {.initial_scale_power = 4, .hysteresis = 1};
  for (const Placement& placement : Placements()) {
    std::vector<double> norms[2];
    for (const bool repeats : {false, true}) {
      const auto run = Begin(WithRules(placement, rules));
      Session& session = run->session();
      ASSERT_TRUE(session.Initialize(ToyWeights).ok());
      EXPECT_FALSE(session.RepeatStep().ok()) << "there is none";
      ASSERT_TRUE(run->Step(1, 1.0F).ok());
      EXPECT_FALSE(session.RepeatStep().ok()) << "it was applied";
      ASSERT_TRUE(run->Step(2, kInfinity, kNaN).ok());
      if (repeats) {
        auto step = session.RepeatStep();
        ASSERT_TRUE(step.ok()) << step.error().message;
        EXPECT_EQ(step->loss_scale(), 16);
        step->ReportLoss(1);
        EXPECT_EQ(step->Finish().error().code, ErrorCode::kInvalidArgument);
        ASSERT_TRUE(step->Drop().ok());
        EXPECT_FALSE(session.RepeatStep().ok()) << "once";
      }
      for (uint64_t t = 2; t <= 4; ++t) {
        const auto done = run->Step(t, 1.0F);
        ASSERT_TRUE(done.ok()) << placement.name << ": " << done.error().message;
        EXPECT_EQ(done->step, t + 1);
        EXPECT_EQ(done->loss_scale, 8);
        norms[repeats ? 1 : 0].push_back(done->grad_norm);
      }
    }
    EXPECT_EQ(norms[1], norms[0]) << placement.name;
  }
}

TEST_F(SessionLossScaleTest, TheStepThatEndsATrainingCanBeRepeated) {
  for (const Placement& placement : Placements()) {
    const auto run = Begin(Options(placement));
    ASSERT_TRUE(run->session().Initialize(ToyWeights).ok());
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(run->Step(1, 1.0F, kNaN).ok());
    EXPECT_FALSE(run->session().BeginStep().ok());
    auto step = run->session().RepeatStep();
    ASSERT_TRUE(step.ok()) << step.error().message;
    EXPECT_TRUE(step->Drop().ok());
  }
}

TEST_F(SessionLossScaleTest, AWeightThatFp16CannotHoldIsRefusedByName) {
  for (const float value : {65520.0F, -1e6F}) {
    const auto source = [value](ModuleId module, size_t tensor, uint64_t begin,
                                std::span<float> values) -> Status {
      PENSTOCK_TRY(ToyWeights(module, tensor, begin, values));
      const bool here = offload::Index(module) == 2 && tensor == 1;
      if (here && begin <= 7 && begin + values.size() > 7) values[7 - begin] = value;
      return {};
    };
    for (Placement placement : Placements()) {
      const auto refused = Begin(Options(placement))->session().Initialize(source);
      ASSERT_FALSE(refused.ok()) << placement.name;
      EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
      EXPECT_THAT(refused.error().message, HasSubstr("element 7 of tensor layer.1.weight is"));
      placement.dtype = DType::kBFloat16;
      EXPECT_TRUE(Begin(Options(placement))->session().Initialize(source).ok()) << placement.name;
    }
  }
}

}  // namespace
}  // namespace penstock::zero
