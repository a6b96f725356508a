// The session: counts, orders of use, and misuse that costs nothing.
#include "zero/session/session.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "tests/zero/session/session_support.h"

namespace penstock::zero {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kUnknown = 99;

/// A step that uses these modules in this order; the last use of each computes its gradient.
Result<StepOutcome> StepInOrder(ToyRun& run, const std::vector<uint32_t>& uses) {
  PENSTOCK_ASSIGN(zero::Step step, run.session().BeginStep());
  step.ReportLoss(1);
  for (size_t i = 0; i < uses.size(); ++i) {
    const ModuleId module{uses[i]};
    PENSTOCK_ASSIGN(zero::Use use, step.Acquire(module));
    if (std::find(uses.begin() + static_cast<long>(i) + 1, uses.end(), uses[i]) != uses.end()) {
      continue;
    }
    PENSTOCK_TRY(run.AddGradient(step, use, 1.0F));
    use.Release();
    PENSTOCK_TRY(run.ReduceGradients(step, module));
  }
  return step.Finish();
}

TEST_F(SessionTest, AStepHasTheMicroBatchesItWasBegunWith) {
  for (const Placement& placement : {kDevice, kNvme}) {
    EngineOptions options = Options(placement);
    options.config.gradient_accumulation_steps = 4;
    options.host_memory += 1_KiB;  // for three losses more
    const auto run = Begin(options);
    Session& session = run->session();
    for (const uint64_t number : {0, 5}) {
      const auto refused = session.BeginStep(number);
      ASSERT_FALSE(refused.ok()) << number;
      EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
      EXPECT_THAT(refused.error().message,
                  HasSubstr("gradient_accumulation_steps, for which memory is planned, is 4"));
    }
    for (const std::optional<uint64_t> number :
         {std::optional<uint64_t>(1), {}, std::optional<uint64_t>(3)}) {
      auto step = session.BeginStep(number);
      ASSERT_TRUE(step.ok()) << step.error().message;
      const uint64_t micro_batches = number.value_or(4);
      EXPECT_TRUE(step->Losses(micro_batches).ok());
      EXPECT_TRUE(step->Losses(micro_batches).ok()) << "again";
      for (const uint64_t other : {micro_batches - 1, micro_batches + 1}) {
        const auto refused = step->Losses(other);
        ASSERT_FALSE(refused.ok());
        EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
        EXPECT_THAT(refused.error().message,
                    HasSubstr(fmt::format("the step was begun with {}", micro_batches)));
      }
      EXPECT_TRUE(step->Drop().ok());
    }
  }
}

TEST_F(SessionTest, AModelOfFiveModulesIsRecordedAndRecordedAgainWhenItsOrderChanges) {
  const std::vector<uint32_t> orders[] = {{3, 1, 4, 0, 2, 2, 4, 0, 1, 3}, {0, 2, 1, 3, 4, 1, 0, 4}};
  Outcome expected;
  bool first = true;
  for (Placement placement : {kDevice, kHost, kNvme, kNvmeWithGradients}) {
    for (const bool overlap : {true, false}) {
      placement.overlap = overlap;
      EngineOptions options = Options(placement);
      options.model = ToySpec(3, kLayerElements);
      options.model.step.clear();
      options.model.gradients.clear();
      // Without clipping, so that both ways to begin updates give the same bits.
      options.config.gradient_clipping = 0;
      Outcome outcome;
      {
        const auto run = Begin(options);
        std::vector<uint64_t> late;
        for (uint64_t step = 0; step < 6; ++step) {
          const auto done = StepInOrder(*run, orders[step / 3]);
          ASSERT_TRUE(done.ok()) << placement.name << ": " << done.error().message;
          outcome.norms.push_back(done->grad_norm);
          late.push_back(run->session().late_uses());
        }
        EXPECT_GT(late[0], 0) << "nothing was declared";
        EXPECT_EQ(late[1], late[0]);
        EXPECT_EQ(late[2], late[0]);
        EXPECT_GT(late[3], late[2]) << "another order";
        EXPECT_EQ(late[4], late[3]);
        EXPECT_EQ(late[5], late[3]);
        ASSERT_TRUE(run->session().Commit("{}").ok());
        state_paths_ = run->session().state_paths();
      }
      ReadStates(&outcome);
      if (std::exchange(first, false)) expected = outcome;
      ExpectSameBits(outcome, expected, placement.name);
    }
  }
}

TEST_F(SessionTest, UsesInAnyOrderGiveTheBitsOfTheDeclaredOne) {
  for (const Placement& placement : {kDevice, kHost, kNvme, kNvmeWithGradients}) {
    Outcome declared;
    Outcome shuffled;
    for (Outcome* outcome : {&declared, &shuffled}) {
      {
        const auto run = Begin(Options(placement));
        std::vector<uint32_t> uses = {0, 1, 2, 3, 4, 5, 0, 4, 3, 2, 1};
        for (uint64_t step = 0; step < 5; ++step) {
          // Another order in every step: none is as it was planned.
          if (outcome == &shuffled) std::rotate(uses.begin(), uses.begin() + 4, uses.end());
          const auto done = StepInOrder(*run, uses);
          ASSERT_TRUE(done.ok()) << placement.name << ": " << done.error().message;
          outcome->norms.push_back(done->grad_norm);
        }
        EXPECT_EQ(run->session().late_uses() > 0, outcome == &shuffled);
        ASSERT_TRUE(run->session().Commit("{}").ok());
        state_paths_ = run->session().state_paths();
      }
      ReadStates(outcome);
    }
    ExpectSameBits(shuffled, declared, placement.name);
  }
}

TEST_F(SessionTest, MisuseIsAStatusThatSaysWhatToDoAndTheStepContinues) {
  for (const Placement& placement : {kDevice, kHost, kNvme, kNvmeWithGradients}) {
    EngineOptions options = Options(placement);
    options.model.groups.push_back({.name = "frozen", .frozen = true});
    for (TensorSpec& tensor : options.model.modules[2].tensors) {
      tensor.group = offload::GroupId{2};
    }
    options.host_memory = 64_MiB;
    const auto run = Begin(options);
    Session& session = run->session();
    const auto refused = [](const Status& status, const std::string& says) {
      ASSERT_FALSE(status.ok()) << says;
      EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument) << status.error().message;
      EXPECT_THAT(status.error().message, HasSubstr(says));
    };
    {
      auto step = session.BeginStep();
      ASSERT_TRUE(step.ok()) << step.error().message;
      refused(session.BeginStep().status(), "finish or drop");
      refused(session.BeginCommit("{}"), "within a step");
      refused(step->Acquire(ModuleId{kUnknown}).status(), "module 99 is unknown");
      refused(step->Gradients(ModuleId{kUnknown}).status(), "module 99 is unknown");
      refused(step->ReduceGradients(ModuleId{kUnknown}), "module 99 is unknown");
      refused(step->Gradients(ModuleId{2}).status(), "module layer.1 is frozen");
      refused(step->ReduceGradients(ModuleId{2}), "module layer.1 is frozen");
      refused(step->BeginHostGradients(ModuleId{2}).status(), "module layer.1 is frozen");
      refused(step->ReduceGradients(ModuleId{1}), "acquire the module first");
      refused(step->BeginHostGradients(ModuleId{1}).status(), "acquire the module first");
      ASSERT_TRUE(step->Acquire(ModuleId{1}).ok());
      refused(step->ReduceGradients(ModuleId{1}), "ask for its sums");
      refused(step->EndHostGradients(ModuleId{1}), "ask BeginHostGradients");
      ASSERT_TRUE(step->Gradients(ModuleId{1}).ok());
      refused(step->Gradients(ModuleId{3}).status(), "reduce the gradients of one before the next");
      ASSERT_TRUE(step->ReduceGradients(ModuleId{1}).ok());
      refused(step->Gradients(ModuleId{1}).status(), "is complete already");
      refused(step->ReduceGradients(ModuleId{1}), "is complete already");
      refused(step->Acquire(ModuleId{1}).status(), "after its gradient was reduced");
      auto use = step->Acquire(ModuleId{0});
      ASSERT_TRUE(use.ok()) << use.error().message;
      refused(step->Finish().status(), "module in is in use");
      use->Release();
      refused(step->Finish().status(), "without the gradient of module in");
      const Status dropped = step->Drop();
      // No loss was reported: no update has begun.
      EXPECT_TRUE(dropped.ok()) << placement.name << ": " << dropped.error().message;
      refused(step->Acquire(ModuleId{0}).status(), "after its end");
      refused(step->Finish().status(), "after its end");
      refused(step->Drop(), "after its end");
    }
    ASSERT_TRUE(session.BeginCommit("{}").ok());
    refused(session.BeginCommit("{}"), "while another one");
    for (uint64_t t = 1; t <= 3; ++t) {
      const auto done = run->Step(t, 1.0F);
      ASSERT_TRUE(done.ok()) << placement.name << ": " << done.error().message;
      EXPECT_EQ(done->step, t);
    }
    EXPECT_TRUE(session.Drain().ok());
  }
}

TEST_F(SessionTest, NothingIsTrainedOrCommittedBeforeTheStateIsFilledAndItIsFilledOnce) {
  for (const Placement& placement : {kDevice, kHost, kNvme}) {
    ToyRun run(Options(placement), 64_MiB);
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    Session& session = run.session();
    EXPECT_THAT(session.BeginStep().status().error().message, HasSubstr("the state is empty"));
    EXPECT_THAT(session.Commit("{}").error().message, HasSubstr("the state is empty"));
    EXPECT_FALSE(ToyRun(Options(placement), 64_MiB).session().Adopt().ok());
    ASSERT_TRUE(session.Initialize(ToyWeights).ok());
    EXPECT_THAT(session.Initialize(ToyWeights).error().message, HasSubstr("filled twice"));
    EXPECT_THAT(session.Adopt().status().error().message, HasSubstr("filled twice"));
    EXPECT_TRUE(run.Step(1, 1.0F).ok());
  }
}

TEST_F(SessionTest, AFillingThatFailedIsGoneOnWithNowhere) {
  const TensorSource source = [](ModuleId module, size_t tensor, uint64_t begin,
                                 std::span<float> values) -> Status {
    if (offload::Index(module) == 1) return MakeError(ErrorCode::kIo, "the weights ended early");
    return ToyWeights(module, tensor, begin, values);
  };
  for (const Placement& placement : {kDevice, kHost, kNvme}) {
    ToyRun run(Options(placement), 64_MiB);
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    Session& session = run.session();
    const auto failed = [](const Status& status) {
      return !status.ok() && status.error().message == "the weights ended early";
    };
    EXPECT_TRUE(failed(session.Initialize(source))) << placement.name;
    EXPECT_TRUE(failed(session.BeginStep().status())) << placement.name;
    EXPECT_TRUE(failed(session.Commit("{}"))) << placement.name;
    EXPECT_TRUE(failed(session.Initialize(ToyWeights))) << placement.name;
  }
}

TEST_F(SessionTest, AStepThatReportsNoLossIsSkippedAndSaysSo) {
  for (const Placement& placement : {kDevice, kHost, kNvme, kNvmeWithGradients}) {
    const auto run = Begin(Options(placement));
    {
      auto step = run->session().BeginStep();
      ASSERT_TRUE(step.ok());
      for (uint32_t i = 0; i < kLayers + 2; ++i) {
        auto use = step->Acquire(ModuleId{i});
        ASSERT_TRUE(use.ok());
        ASSERT_TRUE(run->AddGradient(*step, *use, 1.0F).ok());
        use->Release();
        ASSERT_TRUE(run->ReduceGradients(*step, ModuleId{i}).ok());
      }
      const auto finished = step->Finish();
      ASSERT_FALSE(finished.ok());
      EXPECT_THAT(finished.error().message, HasSubstr("before its loss was reported"));
    }
    EXPECT_EQ(run->session().state().step, 0);
    EXPECT_TRUE(run->Step(1, 1.0F).ok());
    EXPECT_TRUE(run->session().Drain().ok());
  }
}

TEST_F(SessionTest, MoreModulesAtOnceThanThereAreSlotsAreRefusedAndTheStepContinues) {
  const EngineOptions options = Options(kNvme);
  ToyRun run(options, DeviceMemory(kNvme, options));
  ASSERT_TRUE(run.created().ok()) << run.created().error().message;
  ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
  {
    auto step = run.session().BeginStep();
    ASSERT_TRUE(step.ok());
    std::vector<Use> held;
    Status refused;
    for (uint32_t layer = 1; refused.ok() && layer <= kLayers; ++layer) {
      auto use = step->Acquire(ModuleId{layer});
      refused = use.status();
      if (use.ok()) held.push_back(*std::move(use));
    }
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument) << refused.error().message;
    held.clear();
    EXPECT_TRUE(step->Acquire(ModuleId{kLayers}).ok());
  }
  EXPECT_TRUE(run.Step(1, 1.0F).ok());
}

}  // namespace
}  // namespace penstock::zero
