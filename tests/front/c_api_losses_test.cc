// Losses that a caller reports, what they say of commits, and the loss scale that the engine keeps.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "tests/front/c_training.h"

namespace penstock::front {
namespace {

using ::testing::HasSubstr;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class CApiLossesTest : public ::testing::Test {
 protected:
  CTraining Make(const json& options, const json& config = json::object(),
                 const std::string& dtype = "bf16") {
    return {kHomes[1], folder_.Path(), dtype, 1, options, config};
  }

  static int Step(CTraining& training, double loss, penstock_outcome* outcome, double scale = 1) {
    training.ForwardAndBackward(0);
    const int reported = penstock_report_loss(training.engine().handle, loss);
    if (reported != PENSTOCK_OK) return reported;
    return penstock_end_step(training.engine().handle, kGroups, 2, 0, scale, outcome);
  }
  static int Commit(CTraining& training) {
    const int begun = penstock_begin_commit(training.engine().handle, "{}");
    return begun != PENSTOCK_OK ? begun : penstock_finish_commit(training.engine().handle);
  }
  static void ExpectError(int code, int expected, const char* part) {
    EXPECT_EQ(code, expected);
    EXPECT_THAT(penstock_error(), HasSubstr(part));
  }

  TempFolder folder_;
};

TEST_F(CApiLossesTest, ALossConfirmsOrDoubtsACommitAndADoubtfulOneIsTakenBack) {
  std::vector<std::string> paths;
  {
    CTraining training = Make({{"reports_loss", true}});
    training.Fill();
    EXPECT_EQ(training.engine().Describe()["commit"], nullptr);
    penstock_outcome outcome{};
    for (const uint64_t step : {1, 2}) {
      ASSERT_EQ(Step(training, 1, &outcome), PENSTOCK_OK) << penstock_error();
      EXPECT_EQ(outcome.skipped, 0);
      ASSERT_EQ(Commit(training), PENSTOCK_OK) << penstock_error();
      EXPECT_EQ(training.engine().Describe()["commit"],
                json({{"step", step}, {"confirmed", false}, {"doubtful", false}}));
    }
    ASSERT_EQ(Step(training, kNaN, &outcome), PENSTOCK_OK) << penstock_error();
    EXPECT_EQ(outcome.skipped, 1);
    EXPECT_EQ(outcome.optimizer_steps, 2U);
    const json described = training.engine().Describe();
    EXPECT_EQ(described["commit"], json({{"step", 2}, {"confirmed", false}, {"doubtful", true}}));
    paths = described["state_paths"];
    ExpectError(Commit(training), PENSTOCK_NUMERIC, "no loss after the commit of step 2");
    int taken = 0;
    uint64_t step = 0;
    ASSERT_EQ(penstock_take_back_commit(training.engine().handle, &taken, &step), PENSTOCK_OK)
        << penstock_error();
    EXPECT_EQ(taken, 1);
    EXPECT_EQ(step, 2U);
    ExpectError(penstock_use(training.engine().handle, 0, PENSTOCK_FORWARD, nullptr),
                PENSTOCK_NUMERIC, "step 2 was taken back");
  }
  CTraining training = Make({{"reports_loss", true}, {"continue", paths}});
  EXPECT_EQ(training.engine().Describe()["step"], 1);
  EXPECT_EQ(training.engine().Describe()["commit"],
            json({{"step", 1}, {"confirmed", true}, {"doubtful", false}}));
}

TEST_F(CApiLossesTest, AFiniteLossConfirmsACommitAndItStands) {
  CTraining training = Make({{"reports_loss", true}});
  training.Fill();
  penstock_outcome outcome{};
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(Step(training, 1, &outcome), PENSTOCK_OK) << penstock_error();
    ASSERT_EQ(Commit(training), PENSTOCK_OK) << penstock_error();
  }
  training.ForwardAndBackward(0);
  ASSERT_EQ(penstock_report_loss(training.engine().handle, 1), PENSTOCK_OK);
  ASSERT_EQ(penstock_drop_step(training.engine().handle), PENSTOCK_OK);
  EXPECT_EQ(training.engine().Describe()["commit"],
            json({{"step", 2}, {"confirmed", true}, {"doubtful", false}}));
  int taken = 1;
  uint64_t step = 0;
  ASSERT_EQ(penstock_take_back_commit(training.engine().handle, &taken, &step), PENSTOCK_OK);
  EXPECT_EQ(taken, 0);
  EXPECT_EQ(Step(training, 1, &outcome), PENSTOCK_OK) << penstock_error();
}

TEST_F(CApiLossesTest, AStepReportsOneLossWhereTheEngineTakesOne) {
  CTraining training = Make({{"reports_loss", true}});
  penstock_engine* const engine = training.engine().handle;
  ExpectError(penstock_report_loss(engine, 1), PENSTOCK_INVALID_ARGUMENT, "units are missing");
  training.Fill();
  penstock_outcome outcome{};
  training.ForwardAndBackward(0);
  ExpectError(penstock_end_step(engine, kGroups, 2, 0, 1, &outcome), PENSTOCK_INVALID_ARGUMENT,
              "step 1 ends before its loss was reported");
  ASSERT_EQ(penstock_report_loss(engine, 1), PENSTOCK_OK);
  ExpectError(penstock_report_loss(engine, 1), PENSTOCK_INVALID_ARGUMENT, "was reported twice");
  int taken = 0;
  uint64_t step = 0;
  ExpectError(penstock_take_back_commit(engine, &taken, &step), PENSTOCK_INVALID_ARGUMENT,
              "within a step");
  ASSERT_EQ(penstock_end_step(engine, kGroups, 2, 0, 1, &outcome), PENSTOCK_OK) << penstock_error();
  ExpectError(penstock_take_back_commit(engine, nullptr, &step), PENSTOCK_INVALID_ARGUMENT, "NULL");
  ExpectError(penstock_loss_scale(engine, nullptr), PENSTOCK_INVALID_ARGUMENT, "NULL");
}

TEST_F(CApiLossesTest, WithoutTheOptionTheFirstStepDecidesForAll) {
  penstock_outcome outcome{};
  {
    CTraining training = Make(json::object());
    training.Fill();
    ASSERT_EQ(Commit(training), PENSTOCK_OK) << penstock_error();
    ASSERT_EQ(Step(training, 1, &outcome), PENSTOCK_OK) << penstock_error();
    ASSERT_EQ(Commit(training), PENSTOCK_OK) << penstock_error();
    EXPECT_EQ(training.engine().Describe()["commit"],
              json({{"step", 1}, {"confirmed", false}, {"doubtful", false}}));
    training.ForwardAndBackward(1);
    ExpectError(penstock_end_step(training.engine().handle, kGroups, 2, 0, 1, &outcome),
                PENSTOCK_INVALID_ARGUMENT, "step 2 ends before its loss was reported");
    ASSERT_EQ(penstock_report_loss(training.engine().handle, kNaN), PENSTOCK_OK);
    ASSERT_EQ(penstock_end_step(training.engine().handle, kGroups, 2, 0, 1, &outcome), PENSTOCK_OK)
        << penstock_error();
    EXPECT_EQ(outcome.skipped, 1);
  }
  CTraining training = Make(json::object());
  training.Fill();
  ASSERT_EQ(training.Step().step, 1U);
  ExpectError(penstock_report_loss(training.engine().handle, 1), PENSTOCK_INVALID_ARGUMENT,
              "the steps before it reported none");
  ASSERT_EQ(Commit(training), PENSTOCK_OK) << penstock_error();
  EXPECT_EQ(training.engine().Describe()["commit"],
            json({{"step", 1}, {"confirmed", true}, {"doubtful", false}}));
}

TEST_F(CApiLossesTest, AnEngineThatTakesNoneRefusesALossAndConfirmsEveryCommit) {
  CTraining training = Make({{"reports_loss", false}});
  training.Fill();
  ExpectError(penstock_report_loss(training.engine().handle, 1), PENSTOCK_INVALID_ARGUMENT,
              "made with \"reports_loss\": false");
  ASSERT_EQ(training.Step().step, 1U);
  ASSERT_EQ(Commit(training), PENSTOCK_OK) << penstock_error();
  EXPECT_EQ(training.engine().Describe()["commit"],
            json({{"step", 1}, {"confirmed", true}, {"doubtful", false}}));
}

TEST_F(CApiLossesTest, TheEngineKeepsTheLossScaleThatTheConfigurationSays) {
  const json dynamic{{"fp16",
                      {{"enabled", true},
                       {"initial_scale_power", 3},
                       {"loss_scale_window", 2},
                       {"hysteresis", 1}}}};
  CTraining training = Make({{"scales_loss", true}}, dynamic, "fp16");
  penstock_engine* const engine = training.engine().handle;
  training.Fill();
  const auto step = [&](float factor) {
    double scale = 0;
    EXPECT_EQ(penstock_loss_scale(engine, &scale), PENSTOCK_OK);
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      training.Use(unit, PENSTOCK_FORWARD);
      for (const uint32_t tensor : {0U, 1U}) {
        const std::vector<float> gradient(kElements[tensor], factor * static_cast<float>(scale));
        EXPECT_EQ(penstock_gradient(engine, unit, tensor, gradient.data(), PENSTOCK_FLOAT32),
                  PENSTOCK_OK)
            << penstock_error();
      }
    }
    penstock_outcome outcome{};
    EXPECT_EQ(penstock_end_step(engine, kGroups, 2, 0, 0, &outcome), PENSTOCK_OK)
        << penstock_error();
    return outcome;
  };
  const auto scale = [&] { return training.engine().Describe()["loss_scale"].get<double>(); };
  EXPECT_EQ(scale(), 8);
  const double norm = step(0.5F).grad_norm;
  EXPECT_NEAR(norm, 0.5 * std::sqrt(4.0 * (100 * 91 + 13)), 1e-9) << "without the scale";
  EXPECT_EQ(step(std::numeric_limits<float>::infinity()).skipped, 1);
  EXPECT_EQ(scale(), 4);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(0.5F).grad_norm, norm);
  EXPECT_EQ(scale(), 8);
  penstock_outcome outcome{};
  training.ForwardAndBackward(0);
  ExpectError(penstock_end_step(engine, kGroups, 2, 0, 2, &outcome), PENSTOCK_INVALID_ARGUMENT,
              "loss_scale 2, and the engine's is 8");
}

TEST_F(CApiLossesTest, AStaticScaleStaysAndACallersOwnIsAnyNumber) {
  const json fixed{{"fp16", {{"enabled", true}, {"loss_scale", 32}}}};
  {
    CTraining training = Make({{"scales_loss", true}}, fixed, "fp16");
    training.Fill();
    EXPECT_EQ(training.engine().Describe()["loss_scale"], 32);
  }
  CTraining training = Make(json::object(), fixed, "fp16");
  EXPECT_EQ(training.engine().Describe()["loss_scale"], 1);
  json options{{"folders", {folder_.Path()}}, {"scales_loss", true}};
  const CEngine refused(ConfigOf(kHomes[1], folder_.Path()), ModelOf("bf16"), options);
  EXPECT_EQ(refused.code, PENSTOCK_INVALID_ARGUMENT);
  EXPECT_THAT(refused.error, HasSubstr("enable fp16 in it"));
}

}  // namespace
}  // namespace penstock::front
