// The C interface used wrongly: a code and one line, nothing lost, no crash.
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/front/c_training.h"

namespace penstock::front {
namespace {

using ::testing::HasSubstr;

void ExpectError(int code, int expected, const std::string& part) {
  EXPECT_EQ(code, expected);
  EXPECT_THAT(penstock_error(), HasSubstr(part));
}

class CApiMisuse : public ::testing::Test {
 protected:
  void ExpectRefused(const json& config, const json& model, const json& options,
                     const std::string& part) {
    const CEngine engine(config, model, options);
    EXPECT_EQ(engine.code, PENSTOCK_INVALID_ARGUMENT);
    EXPECT_THAT(engine.error, HasSubstr(part));
    EXPECT_EQ(engine.handle, nullptr);
  }
  json Config() const { return ConfigOf(kHomes[3], folder_.Path()); }
  json Options() const { return {{"folders", {folder_.Path()}}}; }

  TempFolder folder_;
};

TEST_F(CApiMisuse, NullIsAnErrorEverywhere) {
  penstock_engine* engine = nullptr;
  char* text = nullptr;
  ExpectError(penstock_create(nullptr, "{}", "{}", &engine), PENSTOCK_INVALID_ARGUMENT, "NULL");
  ExpectError(penstock_create("{}", "{}", "{}", nullptr), PENSTOCK_INVALID_ARGUMENT, "NULL");
  ExpectError(penstock_plan("{}", nullptr, "{}", &text), PENSTOCK_INVALID_ARGUMENT, "NULL");
  ExpectError(penstock_describe(nullptr, &text), PENSTOCK_INVALID_ARGUMENT, "NULL");
  ExpectError(penstock_use(nullptr, 0, 0, nullptr), PENSTOCK_INVALID_ARGUMENT, "NULL");
  ExpectError(penstock_reference_update(nullptr, nullptr, 1, 1, nullptr), PENSTOCK_INVALID_ARGUMENT,
              "NULL");
  penstock_close(nullptr);
  penstock_free(nullptr);
  CTraining training(kHomes[3], folder_.Path(), "bf16");
  penstock_engine* const handle = training.engine().handle;
  ExpectError(penstock_describe(handle, nullptr), PENSTOCK_INVALID_ARGUMENT, "NULL");
  ExpectError(penstock_fill(handle, 0, nullptr), PENSTOCK_INVALID_ARGUMENT, "NULL");
  ExpectError(penstock_begin_commit(handle, nullptr), PENSTOCK_INVALID_ARGUMENT, "NULL");
  ExpectError(penstock_fill_states(handle, 0, nullptr), PENSTOCK_INVALID_ARGUMENT, "NULL");
  ExpectError(penstock_copy_commit(handle, nullptr, 1), PENSTOCK_INVALID_ARGUMENT, "NULL");
  training.Fill();
  ExpectError(penstock_norm(handle, nullptr, nullptr), PENSTOCK_INVALID_ARGUMENT, "NULL");
  ExpectError(penstock_end_step(handle, nullptr, 2, 0, 1, nullptr), PENSTOCK_INVALID_ARGUMENT,
              "NULL");
  ExpectError(penstock_read(handle, 0, 0, 0, 0, 1, nullptr), PENSTOCK_INVALID_ARGUMENT, "NULL");
}

TEST_F(CApiMisuse, TextsAreReadStrictly) {
  json model = ModelOf("bf16");
  model["unit"] = 1;
  ExpectRefused(Config(), model, Options(), "model: unit is unknown");
  model = ModelOf("bf16");
  model["units"][1]["tensors"][0]["shape"] = {3, 0};
  ExpectRefused(Config(), model, Options(), "model: units[1].tensors[0].shape has 0");
  model = ModelOf("bf16");
  model["units"][1]["tensors"][0]["name"] = "u0.w";
  ExpectRefused(Config(), model, Options(), "units[1].tensors names u0.w");
  model = ModelOf("bf16");
  model["units"][1]["tensors"][0]["group"] = 3;
  ExpectRefused(Config(), model, Options(), "units[1].tensors[0].group is 3");
  model = ModelOf("int8");
  ExpectRefused(Config(), model, Options(), "groups[0].dtype is \"int8\"");
  model = ModelOf("bf16");
  std::swap(model["groups"][0], model["groups"][2]);
  ExpectRefused(Config(), model, Options(), "frozen groups last");
  ExpectRefused(Config(), {{"units", json::array()}, {"groups", model["groups"]}}, Options(),
                "units is missing or empty");
  json options = Options();
  options["slots"] = 0;
  ExpectRefused(Config(), ModelOf("bf16"), options, "options: slots is 0");
  options = Options();
  options["folders"] = {folder_.Path(), folder_.Path()};
  ExpectRefused(Config(), ModelOf("bf16"), options, "folders has 2 entries");
  json config = Config();
  config["zero_optimisation"] = 1;
  ExpectRefused(config, ModelOf("bf16"), Options(), "zero_optimization");
}

TEST_F(CApiMisuse, WhatDoesNotExistIsRefused) {
  CTraining training(kHomes[3], folder_.Path(), "bf16");
  penstock_engine* const handle = training.engine().handle;
  ExpectError(penstock_use(handle, 0, PENSTOCK_FORWARD, nullptr), PENSTOCK_INVALID_ARGUMENT,
              "weights of 4 units are missing, of u0 first");
  training.Fill();
  const void* tensors[kTensors] = {};
  ExpectError(penstock_fill(handle, 0, tensors), PENSTOCK_INVALID_ARGUMENT, "filled already");
  CTraining unfilled(kHomes[1], folder_.Path(), "bf16");
  ExpectError(penstock_fill(unfilled.engine().handle, 0, tensors), PENSTOCK_INVALID_ARGUMENT,
              "the elements of tensor u0.w are NULL");
  const uint64_t most = ~uint64_t{0};
  ExpectError(penstock_begin_at(unfilled.engine().handle, most, most), PENSTOCK_INVALID_ARGUMENT,
              "are said to have been made elsewhere");
  ExpectError(penstock_use(handle, kUnits, PENSTOCK_FORWARD, nullptr), PENSTOCK_INVALID_ARGUMENT,
              "unit 4 is unknown");
  ExpectError(penstock_use(handle, 0, 7, nullptr), PENSTOCK_INVALID_ARGUMENT, "7 is no");
  void* nowhere[kTensors] = {};
  ExpectError(penstock_use_tensors(handle, 0, PENSTOCK_FORWARD, nowhere), PENSTOCK_INVALID_ARGUMENT,
              "the memory for tensor u0.w is NULL");
  ExpectError(penstock_use_tensors(handle, 0, PENSTOCK_FORWARD, nullptr), PENSTOCK_INVALID_ARGUMENT,
              "the list of tensors");
  ExpectError(penstock_use_tensors(handle, kUnits, PENSTOCK_FORWARD, nowhere),
              PENSTOCK_INVALID_ARGUMENT, "unit 4 is unknown");
  ExpectError(penstock_gradient(handle, 0, kTensors, nullptr, 0), PENSTOCK_INVALID_ARGUMENT,
              "has no tensor 3");
  ExpectError(penstock_gradient(handle, 0, 0, nullptr, 9), PENSTOCK_INVALID_ARGUMENT, "9 is no");
  ExpectError(penstock_gradient(handle, 0, 2, nullptr, PENSTOCK_BFLOAT16),
              PENSTOCK_INVALID_ARGUMENT, "u0.f is frozen");
  ExpectError(penstock_gradient(handle, 0, 0, nullptr, PENSTOCK_FLOAT16), PENSTOCK_INVALID_ARGUMENT,
              "got a gradient of fp16");
  float values[2] = {};
  ExpectError(penstock_read(handle, 0, 1, PENSTOCK_MASTER, 12, 2, values),
              PENSTOCK_INVALID_ARGUMENT, "elements 12 to 14");
  ExpectError(penstock_read(handle, 0, 1, PENSTOCK_MASTER, ~uint64_t{0}, 2, values),
              PENSTOCK_INVALID_ARGUMENT, "it has 13");
  ExpectError(penstock_read(handle, 0, 2, PENSTOCK_EXP_AVG, 0, 2, values),
              PENSTOCK_INVALID_ARGUMENT, "no such state");
}

TEST_F(CApiMisuse, AStepNeedsItsGradientsAndScalarsAndContinuesAfterMistakes) {
  const std::string dtype = "bf16";
  CTraining training(kHomes[3], folder_.Path(), dtype);
  training.Fill();
  penstock_engine* const handle = training.engine().handle;
  penstock_outcome outcome{};
  double norm = 0;
  int finite = 0;
  for (uint32_t unit = 0; unit < kUnits; ++unit) training.Use(unit, PENSTOCK_FORWARD);
  ExpectError(penstock_norm(handle, &norm, &finite), PENSTOCK_INVALID_ARGUMENT,
              "8 of the trained tensors got no gradient in this step: u0.w, u0.b");
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    for (const uint32_t tensor : {0U, 1U}) {
      const Values first =
          FirstWeights(tensor == 1 ? PENSTOCK_FLOAT32 : PENSTOCK_BFLOAT16, unit, tensor);
      const Values gradient = GradientOf(first, 0);
      ASSERT_EQ(penstock_gradient(handle, unit, tensor, gradient.bytes.data(), gradient.dtype),
                PENSTOCK_OK);
    }
  }
  ExpectError(penstock_gradient(handle, 0, 0, nullptr, PENSTOCK_BFLOAT16),
              PENSTOCK_INVALID_ARGUMENT, "got 2 gradients in this step");
  ExpectError(penstock_end_step(handle, kGroups, 1, 0, 1, &outcome), PENSTOCK_INVALID_ARGUMENT,
              "scalars of 1 parameter groups");
  ExpectError(penstock_end_step(handle, kGroups, 2, -1, 1, &outcome), PENSTOCK_INVALID_ARGUMENT,
              "max_norm");
  ExpectError(penstock_end_step(handle, kGroups, 2, 0, std::nan(""), &outcome),
              PENSTOCK_INVALID_ARGUMENT, "loss_scale");
  penstock_group wrong[] = {kGroups[0], kGroups[1]};
  wrong[1].beta2 = 1;
  ExpectError(penstock_end_step(handle, wrong, 2, 0, 1, &outcome), PENSTOCK_INVALID_ARGUMENT,
              "beta");
  wrong[1] = kGroups[1];
  wrong[1].lr = std::nan("");
  ExpectError(penstock_end_step(handle, wrong, 2, 0, 1, &outcome), PENSTOCK_INVALID_ARGUMENT, "lr");
  ASSERT_EQ(penstock_end_step(handle, kGroups, 2, 0, 1, &outcome), PENSTOCK_OK) << penstock_error();
  CTraining right(kHomes[1], folder_.Path(), dtype);
  right.Fill();
  EXPECT_EQ(outcome.grad_norm, right.Step().grad_norm);
}

TEST_F(CApiMisuse, ACommitsTextHasAnEnd) {
  CTraining training(kHomes[3], folder_.Path(), "bf16");
  training.Fill();
  penstock_engine* const handle = training.engine().handle;
  const std::string longest(63 << 10, 'x');
  ExpectError(penstock_begin_commit(handle, (longest + "x").c_str()), PENSTOCK_INVALID_ARGUMENT,
              "at most 64512 fit");
  ExpectError(penstock_begin_commit(handle, R"({"caller_file":{"bytes":2}})"),
              PENSTOCK_INVALID_ARGUMENT, "the key \"caller_file\", which is penstock's");
  ASSERT_EQ(penstock_begin_commit(handle, longest.c_str()), PENSTOCK_OK);
  ASSERT_EQ(penstock_finish_commit(handle), PENSTOCK_OK) << penstock_error();
  ExpectError(penstock_continued(handle, nullptr), PENSTOCK_NOT_FOUND, "resumes from no commit");
}

TEST_F(CApiMisuse, AForkedChildIsRefusedAndTheParentContinues) {
  CTraining training(kHomes[3], folder_.Path(), "bf16");
  training.Fill();
  training.Step();
  penstock_engine* const handle = training.engine().handle;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const int code = penstock_use(handle, 0, PENSTOCK_FORWARD, nullptr);
    penstock_close(handle);
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), PENSTOCK_UNAVAILABLE);
  training.Step();
}

TEST_F(CApiMisuse, MemoryOfAGpuNeedsADriverWithAContext) {
  CTraining training(kHomes[1], folder_.Path(), "bf16", 1, {{"cuda", true}});
  training.Fill();
  void* const somewhere = reinterpret_cast<void*>(uint64_t{1} << 40);
  EXPECT_EQ(penstock_use_on(training.engine().handle, 0, PENSTOCK_FORWARD, somewhere, nullptr),
            PENSTOCK_UNAVAILABLE);
  EXPECT_THAT(penstock_error(), HasSubstr("cuda: "));
  training.Step();  // which is in memory of the host
}

TEST_F(CApiMisuse, AnEngineThatIsNotClosedEndsWithTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const TempFolder folder;
        auto* training = new CTraining(kHomes[3], folder.Path(), "bf16");
        training->Fill();
        training->Step();  // its updates are under way
        std::exit(0);      // NOLINT(concurrency-mt-unsafe)
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(CApiMisuse, AForkedChildDoesNotKeepTheFilesInUse) {
  std::vector<std::string> paths;
  pid_t child = 0;
  {
    CTraining training(kHomes[3], folder_.Path(), "bf16");
    training.Fill();
    ASSERT_EQ(penstock_begin_commit(training.engine().handle, "{}"), PENSTOCK_OK);
    ASSERT_EQ(penstock_finish_commit(training.engine().handle), PENSTOCK_OK);
    paths = training.description()["state_paths"].get<std::vector<std::string>>();
    child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (;;) ::pause();  // until it is killed
    }
  }
  { const CTraining again(kHomes[3], folder_.Path(), "bf16", 1, {{"continue", paths}}); }
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST_F(CApiMisuse, TheSameFilesAreOpenOnce) {
  CTraining training(kHomes[3], folder_.Path(), "bf16");
  training.Fill();
  ASSERT_EQ(penstock_begin_commit(training.engine().handle, "{}"), PENSTOCK_OK);
  ASSERT_EQ(penstock_finish_commit(training.engine().handle), PENSTOCK_OK);
  json options = Options();
  options["continue"] = training.description()["state_paths"];
  const CEngine second(Config(), ModelOf("bf16"), options);
  EXPECT_EQ(second.code, PENSTOCK_UNAVAILABLE);
}

TEST_F(CApiMisuse, TheReferenceRefusesWhatTheRuleDoesNotHave) {
  float values[3] = {1, 2, 3};
  penstock_elements elements{.count = 3,
                             .weight = values,
                             .exp_avg = values,
                             .gradient = values,
                             .weight_dtype = PENSTOCK_FLOAT32};
  const std::string config = Config().dump();
  ExpectError(penstock_reference_update(config.c_str(), &kGroups[0], 1, 1, &elements),
              PENSTOCK_INVALID_ARGUMENT, "the rule has an exp_avg_sq, and none was given");
  elements.exp_avg_sq = values;
  ExpectError(penstock_reference_update(config.c_str(), &kGroups[0], 0, 1, &elements),
              PENSTOCK_INVALID_ARGUMENT, "counted from 1");
  elements.weight_dtype = PENSTOCK_BFLOAT16;
  ExpectError(penstock_reference_update(config.c_str(), &kGroups[0], 1, 1, &elements),
              PENSTOCK_INVALID_ARGUMENT, "lower halves of their masters");
}

}  // namespace
}  // namespace penstock::front
