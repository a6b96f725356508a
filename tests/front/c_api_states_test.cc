// Trainings that resume with states from elsewhere, and commits that are kept: through the C
// interface.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "tests/front/c_training.h"

namespace penstock::front {
namespace {

using ::testing::HasSubstr;

bool HasState(uint32_t tensor, int kind) { return tensor != 2 || kind == PENSTOCK_MASTER; }

/// The states of a unit: of each tensor master, exp_avg and exp_avg_sq.
class UnitStates {
 public:
  static UnitStates Read(penstock_engine* engine, uint32_t unit) {
    UnitStates states;
    for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
      for (int kind = PENSTOCK_MASTER; kind <= PENSTOCK_EXP_AVG_SQ; ++kind) {
        std::vector<float>& values = states.values_[tensor][kind];
        if (!HasState(tensor, kind)) continue;
        values.resize(kElements[tensor]);
        EXPECT_EQ(penstock_read(engine, unit, tensor, kind, 0, values.size(), values.data()),
                  PENSTOCK_OK)
            << penstock_error();
      }
    }
    return states;
  }
  std::vector<penstock_states> Views() const {
    std::vector<penstock_states> views;
    const auto data = [](const std::vector<float>& values) {
      return values.empty() ? nullptr : values.data();
    };
    for (const auto& of : values_) {
      views.push_back({.master = data(of[0]), .exp_avg = data(of[1]), .exp_avg_sq = data(of[2])});
    }
    return views;
  }
  std::vector<float>& Of(uint32_t tensor, int kind) { return values_[tensor][kind]; }
  bool operator==(const UnitStates&) const = default;

 private:
  std::vector<float> values_[kTensors][3];
};

void FillFrom(const std::vector<UnitStates>& states, penstock_engine* engine) {
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    ASSERT_EQ(penstock_fill_states(engine, unit, states[unit].Views().data()), PENSTOCK_OK)
        << penstock_error();
  }
}

std::vector<UnitStates> ReadAll(penstock_engine* engine) {
  std::vector<UnitStates> states;
  for (uint32_t unit = 0; unit < kUnits; ++unit) states.push_back(UnitStates::Read(engine, unit));
  return states;
}

TEST(CApiStatesTest, ATrainingResumesInAnotherEngineWithTheSameBits) {
  for (const std::string dtype : {"fp32", "bf16", "fp16"}) {
    const TempFolder first;
    CTraining training(kHomes[3], first.Path(), dtype);
    training.Fill();
    for (int step = 0; step < 2; ++step) training.Step();
    const std::vector<UnitStates> states = ReadAll(training.engine().handle);
    Trained expected;
    for (int step = 0; step < 2; ++step) expected.norms.push_back(training.Step().grad_norm);
    training.ReadInto(&expected);
    for (const Home& home : kHomes) {
      const TempFolder folder;
      CTraining other(home, folder.Path(), dtype);
      FillFrom(states, other.engine().handle);
      ASSERT_EQ(penstock_begin_at(other.engine().handle, 2, 2), PENSTOCK_OK) << penstock_error();
      EXPECT_TRUE(ReadAll(other.engine().handle) == states) << dtype << ", " << home.name;
      Trained trained;
      for (int step = 0; step < 2; ++step) trained.norms.push_back(other.Step().grad_norm);
      other.ReadInto(&trained);
      EXPECT_TRUE(trained == expected) << dtype << ", " << home.name;
      EXPECT_EQ(other.engine().Describe()["step"], 4);
    }
  }
}

TEST(CApiStatesTest, StatesThatAreMissingOrNotFiniteAreRefusedAndCanBeGivenAgain) {
  const TempFolder from;
  const TempFolder folder;
  CTraining training(kHomes[1], from.Path(), "bf16");
  training.Fill();
  training.Step();
  UnitStates states = UnitStates::Read(training.engine().handle, 0);
  CTraining other(kHomes[3], folder.Path(), "bf16");
  penstock_engine* const engine = other.engine().handle;
  std::vector<penstock_states> views = states.Views();
  views[0].exp_avg_sq = nullptr;
  EXPECT_EQ(penstock_fill_states(engine, 0, views.data()), PENSTOCK_INVALID_ARGUMENT);
  EXPECT_THAT(penstock_error(), HasSubstr("u0.w"));
  const float kept = states.Of(1, PENSTOCK_EXP_AVG)[3];
  states.Of(1, PENSTOCK_EXP_AVG)[3] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(penstock_fill_states(engine, 0, states.Views().data()), PENSTOCK_NUMERIC);
  EXPECT_THAT(penstock_error(), HasSubstr("element 3 of a moment of tensor u0.b"));
  states.Of(1, PENSTOCK_EXP_AVG)[3] = kept;
  EXPECT_EQ(penstock_fill_states(engine, 0, states.Views().data()), PENSTOCK_OK);
  EXPECT_EQ(penstock_fill_states(engine, 0, states.Views().data()), PENSTOCK_INVALID_ARGUMENT);
  EXPECT_THAT(penstock_error(), HasSubstr("was filled already"));
}

TEST(CApiStatesTest, StepsOfElsewhereAreSaidBeforeTheFirstOne) {
  const TempFolder folder;
  CTraining training(kHomes[1], folder.Path(), "bf16");
  penstock_engine* const engine = training.engine().handle;
  EXPECT_EQ(penstock_begin_at(engine, 2, 3), PENSTOCK_INVALID_ARGUMENT);
  training.Fill();
  EXPECT_EQ(penstock_begin_at(engine, 3, 2), PENSTOCK_OK);
  const penstock_outcome outcome = training.Step();
  EXPECT_EQ(outcome.step, 4U);
  EXPECT_EQ(outcome.optimizer_steps, 3U);
  EXPECT_EQ(penstock_begin_at(engine, 9, 9), PENSTOCK_INVALID_ARGUMENT);
  EXPECT_THAT(penstock_error(), HasSubstr("before its first step"));
}

int Copy(penstock_engine* engine, const std::string& path) {
  const char* const paths[] = {path.c_str()};
  return penstock_copy_commit(engine, paths, 1);
}

int Commit(penstock_engine* engine, const std::string& json) {
  EXPECT_EQ(penstock_begin_commit(engine, json.c_str()), PENSTOCK_OK) << penstock_error();
  return penstock_finish_commit(engine);
}

TEST(CApiStatesTest, ACopiedCommitIsContinuedAfterLaterOnes) {
  for (const Home& home : {kHomes[1], kHomes[3], kHomes[4]}) {
    const TempFolder folder;
    const std::string copy = folder.Path() + "/copy.state";
    Trained expected;
    {
      CTraining training(home, folder.Path(), "bf16");
      penstock_engine* const engine = training.engine().handle;
      training.Fill();
      EXPECT_EQ(Copy(engine, copy), PENSTOCK_NOT_FOUND);
      training.Step();
      ASSERT_EQ(Commit(engine, "[1]"), PENSTOCK_OK);
      training.Step();  // runs on while the copy is made
      ASSERT_EQ(Copy(engine, copy), PENSTOCK_OK) << penstock_error();
      EXPECT_EQ(Copy(engine, copy), PENSTOCK_INVALID_ARGUMENT);
      ASSERT_EQ(Commit(engine, "[2]"), PENSTOCK_OK);
      training.ReadInto(&expected);
    }
    const TempFolder other;
    CTraining training(home, other.Path(), "bf16", 1, {{"continue", {copy}}});
    EXPECT_EQ(training.description()["step"], 1);
    EXPECT_EQ(training.engine().Text(penstock_continued), json::array({1}));
    EXPECT_TRUE(training.description()["moved"]);
    training.Step();
    Trained trained;
    training.ReadInto(&trained);
    EXPECT_TRUE(trained == expected) << home.name;
    EXPECT_TRUE(std::filesystem::exists(copy));
  }
}

TEST(CApiStatesTest, WithOneSlotACommitIsCopiedBeforeTheNextStepOrNot) {
  const TempFolder folder;
  CTraining training(kHomes[3], folder.Path(), "bf16", 1, json::object(),
                     {{"penstock", {{"durable", false}}}});
  penstock_engine* const engine = training.engine().handle;
  training.Fill();
  training.Step();
  ASSERT_EQ(Commit(engine, "1"), PENSTOCK_OK);
  EXPECT_EQ(Copy(engine, folder.Path() + "/a.state"), PENSTOCK_OK) << penstock_error();
  training.Step();
  EXPECT_EQ(Copy(engine, folder.Path() + "/b.state"), PENSTOCK_INVALID_ARGUMENT);
  EXPECT_THAT(penstock_error(), HasSubstr("before the next step ends"));
}

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// A training that ended with the commits of steps 1 and 2.
struct TwoCommits {
  TempFolder folder;
  std::string path;
  std::string first;  ///< what the file had when step 1 was committed

  TwoCommits() {
    CTraining training(kHomes[3], folder.Path(), "bf16");
    training.Fill();
    path = training.description()["state_paths"][0].get<std::string>();
    for (int step = 0; step < 2; ++step) {
      training.Step();
      EXPECT_EQ(penstock_begin_commit(training.engine().handle, "{}"), PENSTOCK_OK);
      EXPECT_EQ(penstock_finish_commit(training.engine().handle), PENSTOCK_OK) << penstock_error();
      if (step == 0) first = BytesOf(path);
    }
  }
  /// Flips bits of a byte that the second commit alone has.
  void DamageSecond() const {
    std::string bytes = BytesOf(path);
    size_t last = bytes.size() - 1;
    while (bytes[last] == first[last]) --last;
    bytes[last] = static_cast<char>(~bytes[last]);
    std::ofstream(path, std::ios::binary) << bytes;
  }
  CEngine Continue(const Home& home, const json& step) const {
    json options{{"folders", {folder.Path()}}, {"continue", {path}}};
    if (!step.is_null()) options["step"] = step;
    return {ConfigOf(home, folder.Path()), ModelOf("bf16"), options};
  }
  size_t Files() const {
    const std::filesystem::directory_iterator files(folder.Path());
    return static_cast<size_t>(std::distance(begin(files), end(files)));
  }
};

TEST(CApiStatesTest, TheCommitOfAnotherStepThanTheOneAskedForIsNotContinued) {
  const TwoCommits state;
  const std::string before = BytesOf(state.path);
  for (const Home& home : {kHomes[0], kHomes[3]}) {  // moved, and in the files
    const CEngine engine = state.Continue(home, 7);
    EXPECT_EQ(engine.code, PENSTOCK_INVALID_ARGUMENT);
    EXPECT_THAT(engine.error, AllOf(HasSubstr(state.path), HasSubstr("newest commit is of step 2"),
                                    HasSubstr("step 7 was asked for")));
  }
  EXPECT_TRUE(BytesOf(state.path) == before);
  EXPECT_EQ(state.Files(), 1U);
  EXPECT_EQ(state.Continue(kHomes[3], 1).code, PENSTOCK_INVALID_ARGUMENT);  // step 2 would be lost
  EXPECT_EQ(state.Continue(kHomes[3], 2).Describe()["step"], 2);
  const CEngine alone({}, {}, {{"folders", {"x"}}, {"step", 1}});
  EXPECT_EQ(alone.code, PENSTOCK_INVALID_ARGUMENT);
  EXPECT_THAT(alone.error, HasSubstr("step needs continue"));
}

TEST(CApiStatesTest, ADamagedCommitThatIsAskedForIsRefusedAndNamedAndStays) {
  const TwoCommits state;
  state.DamageSecond();
  const std::string before = BytesOf(state.path);
  for (const Home& home : {kHomes[0], kHomes[3]}) {
    const CEngine engine = state.Continue(home, 2);
    EXPECT_EQ(engine.code, PENSTOCK_CORRUPTION);
    EXPECT_THAT(engine.error,
                AllOf(HasSubstr(state.path), HasSubstr("the commit of step 2 is damaged: "),
                      HasSubstr("asked for")));
  }
  EXPECT_TRUE(BytesOf(state.path) == before);
  EXPECT_EQ(state.Files(), 1U);
  const CEngine engine = state.Continue(kHomes[3], nullptr);
  const json described = engine.Describe();
  EXPECT_EQ(described["step"], 1);
  ASSERT_EQ(described["warnings"].size(), 1U);
  EXPECT_THAT(described["warnings"][0].get<std::string>(),
              AllOf(HasSubstr("the commit of step 2 is damaged"), HasSubstr("step 1")));
}

}  // namespace
}  // namespace penstock::front
