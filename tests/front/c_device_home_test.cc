// States at home on the device: the bits of every other home, commits that go from one home to
// another, sums, skipped and dropped steps, reads, plans.
#include <limits>

#include "tests/front/device_home.h"

namespace penstock::front {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 3;

/// The moments, too.
struct States {
  Trained trained;
  std::vector<std::vector<float>> moments;

  bool operator==(const States&) const = default;
};

template <typename Training>
States StatesOf(Training& training, penstock_engine* engine, Trained trained = {}) {
  States states{.trained = std::move(trained), .moments = {}};
  training.ReadInto(&states.trained);
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    for (const uint32_t tensor : {0U, 1U}) {
      for (const int kind : {PENSTOCK_EXP_AVG, PENSTOCK_EXP_AVG_SQ}) {
        std::vector<float> values(kElements[tensor]);
        if (penstock_read(engine, unit, tensor, kind, 0, values.size(), values.data()) != 0) {
          continue;  // the rule does not have it
        }
        states.moments.push_back(std::move(values));
      }
    }
  }
  return states;
}

template <typename Training>
States TrainOf(Training& training, penstock_engine* engine, int steps, double max_norm) {
  Trained trained;
  for (int step = 0; step < steps; ++step) {
    trained.norms.push_back(training.Step(max_norm).grad_norm);
  }
  return StatesOf(training, engine, std::move(trained));
}

States TrainOnTheHost(const std::string& dtype, uint64_t micro_batches, double max_norm,
                      int steps = kSteps, json config = json::object()) {
  const TempFolder folder;
  config["gradient_accumulation_steps"] = micro_batches;
  CTraining training(kHomes[1], folder.Path(), dtype, micro_batches, json::object(), config);
  training.Fill();
  return TrainOf(training, training.engine().handle, steps, max_norm);
}

States TrainOnTheDevice(const std::string& dtype, uint64_t micro_batches, double max_norm,
                        Addresses addresses = Addresses::kOfUnit, json config = json::object()) {
  const TempFolder folder;
  CudaTraining training(kDeviceHome, folder.Path(), dtype, micro_batches, addresses, json::object(),
                        std::move(config));
  return TrainOf(training, training.handle(), kSteps, max_norm);
}

using CDeviceHome = DeviceHomeTest;

TEST_F(CDeviceHome, EveryDtypeTrainsToTheBitsOfMemoryOfTheHost) {
  for (const std::string dtype : {"fp32", "bf16", "fp16"}) {
    for (const uint64_t micro_batches : {1, 3}) {
      for (const double max_norm : {0.0, 0.25}) {
        const States expected = TrainOnTheHost(dtype, micro_batches, max_norm);
        for (const Addresses addresses : {Addresses::kOfUnit, Addresses::kOfTensors}) {
          EXPECT_TRUE(TrainOnTheDevice(dtype, micro_batches, max_norm, addresses) == expected)
              << dtype << ", " << micro_batches << " micro-batches, clipped to " << max_norm;
        }
      }
    }
  }
}

TEST_F(CDeviceHome, EveryRuleTrainsToTheBitsOfMemoryOfTheHost) {
  for (const std::string rule : {"Adam", "Lion", "Adagrad", "Lamb"}) {
    const json config{{"optimizer", {{"type", rule}, {"params", {{"lr", 1e-3}}}}}};
    EXPECT_TRUE(TrainOnTheDevice("bf16", 1, 0, Addresses::kOfUnit, config) ==
                TrainOnTheHost("bf16", 1, 0, kSteps, config))
        << rule;
  }
}

/// Of tiles of several tensors as well as of tensors of several tiles.
TEST_F(CDeviceHome, TheSizeOfTilesChangesNoBit) {
  for (const uint64_t elements : {8192, 1 << 20}) {
    const json config{{"penstock", {{"tile_elements", elements}}}};
    EXPECT_TRUE(TrainOnTheDevice("bf16", 1, 0.25, Addresses::kOfUnit, config) ==
                TrainOnTheHost("bf16", 1, 0.25));
  }
}

std::vector<std::string> CommitPathsOf(CudaTraining& training) {
  EXPECT_EQ(penstock_begin_commit(training.handle(), "{\"mine\": 1}"), PENSTOCK_OK)
      << penstock_error();
  EXPECT_EQ(penstock_finish_commit(training.handle()), PENSTOCK_OK) << penstock_error();
  return training.host().engine().Describe()["state_paths"];
}

TEST_F(CDeviceHome, ACommitIsResumedInEveryOtherHomeAndFromEveryOther) {
  for (const std::string dtype : {"bf16", "fp16"}) {
    States expected = TrainOnTheHost(dtype, 1, 0);
    expected.trained.norms.erase(expected.trained.norms.begin());
    for (const Home& other : kHomes) {
      for (const bool from_device : {true, false}) {
        const TempFolder folder;
        const TempFolder next;
        std::vector<std::string> paths;
        {
          CudaTraining first(from_device ? kDeviceHome : other, folder.Path(), dtype);
          first.Step();
          paths = CommitPathsOf(first);
        }
        for (const std::string& to : {folder.Path(), next.Path()}) {  // in place, and moved
          const bool moves = to == next.Path();
          if (!moves) continue;
          CudaTraining second(from_device ? other : kDeviceHome, to, dtype, 1, Addresses::kOfUnit,
                              {{"continue", paths}});
          EXPECT_EQ(second.host().engine().Text(penstock_continued), json({{"mine", 1}}));
          EXPECT_TRUE(TrainOf(second, second.handle(), kSteps - 1, 0) == expected)
              << dtype << ", " << other.name << (from_device ? " after" : " before") << " device";
        }
        CudaTraining in_place(from_device ? other : kDeviceHome, folder.Path(), dtype, 1,
                              Addresses::kOfUnit, {{"continue", paths}});
        EXPECT_TRUE(TrainOf(in_place, in_place.handle(), kSteps - 1, 0) == expected)
            << dtype << ", in the files of " << other.name;
      }
    }
  }
}

TEST_F(CDeviceHome, ACommitCanBeCopiedAndContinued) {
  const TempFolder folder;
  CudaTraining training(kDeviceHome, folder.Path(), "bf16");
  training.Step();
  CommitPathsOf(training);
  const std::string copy = folder.Path() + "/copy.state";
  const char* const paths[] = {copy.c_str()};
  ASSERT_EQ(penstock_copy_commit(training.handle(), paths, 1), PENSTOCK_OK) << penstock_error();
  const States later = TrainOf(training, training.handle(), 2, 0);
  const TempFolder next;
  CudaTraining again(kDeviceHome, next.Path(), "bf16", 1, Addresses::kOfUnit,
                     {{"continue", {copy}}});
  EXPECT_TRUE(TrainOf(again, again.handle(), 2, 0) == later);
}

/// Gives the step's gradients: those of `batch`, or all elements of one value.
void GiveGradients(CudaTraining& training, int dtype, std::list<DeviceBytes>& memory, float value) {
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    for (const uint32_t tensor : {0U, 1U}) {
      const int of = tensor == 1 ? int{PENSTOCK_FLOAT32} : dtype;
      Values values(of, kElements[tensor]);
      for (uint64_t i = 0; i < kElements[tensor]; ++i) values.Set(i, value);
      const DeviceBytes& gradient = memory.emplace_back(values.bytes.size());
      std::memcpy(gradient.bytes(), values.bytes.data(), values.bytes.size());
      ASSERT_EQ(penstock_gradient_on(training.handle(), unit, tensor, gradient.pointer(), of,
                                     training.copies().get()),
                PENSTOCK_OK)
          << penstock_error();
    }
  }
}

TEST_F(CDeviceHome, AStepWhoseGradientIsNotFiniteChangesNothing) {
  const TempFolder folder;
  std::list<DeviceBytes> memory;
  CudaTraining training(kDeviceHome, folder.Path(), "bf16");
  training.Step();
  const States before = StatesOf(training, training.handle());
  GiveGradients(training, PENSTOCK_BFLOAT16, memory, std::numeric_limits<float>::infinity());
  penstock_outcome outcome{};
  ASSERT_EQ(penstock_end_step(training.handle(), kGroups, 2, 0, 1, &outcome), PENSTOCK_OK);
  EXPECT_EQ(outcome.skipped, 1);
  EXPECT_EQ(outcome.step, 2);
  EXPECT_EQ(outcome.optimizer_steps, 1);
  EXPECT_TRUE(StatesOf(training, training.handle()) == before);
  training.Step();
  training.Step();
  EXPECT_TRUE(StatesOf(training, training.handle()) == [] {
    States states = TrainOnTheHost("bf16", 1, 0);
    states.trained.norms.clear();
    return states;
  }());
}

TEST_F(CDeviceHome, ADroppedStepChangesNothingWithOrWithoutItsNorm) {
  const TempFolder folder;
  std::list<DeviceBytes> memory;
  CudaTraining training(kDeviceHome, folder.Path(), "bf16", 2);
  double norm = 0;
  int finite = 0;
  for (const bool with_norm : {false, true}) {
    GiveGradients(training, PENSTOCK_BFLOAT16, memory, 3);
    if (with_norm) {
      ASSERT_EQ(penstock_norm(training.handle(), &norm, &finite), PENSTOCK_OK);
    }
    ASSERT_EQ(penstock_drop_step(training.handle()), PENSTOCK_OK) << penstock_error();
  }
  EXPECT_TRUE(TrainOf(training, training.handle(), kSteps, 0) == TrainOnTheHost("bf16", 2, 0));
}

TEST_F(CDeviceHome, MicroBatchesAreAddedInFp32InTheOrderOfTheCalls) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    const TempFolder folder;
    std::list<DeviceBytes> memory;
    CudaTraining training(kDeviceHome, folder.Path(), dtype, 4);
    double norm = -1;
    int finite = 0;
    // (2^24 + 1) - 2^24 is 0 in fp32; another order, or more digits, gives 1.
    for (const float value : {0x1p24F, 1.0F, -0x1p24F}) {
      GiveGradients(training, CodeOf(dtype), memory, value);
    }
    ASSERT_EQ(penstock_norm(training.handle(), &norm, &finite), PENSTOCK_OK) << penstock_error();
    EXPECT_EQ(norm, 0) << dtype;  // with fewer micro-batches than the most
    EXPECT_EQ(finite, 1);
    ASSERT_EQ(penstock_drop_step(training.handle()), PENSTOCK_OK);
  }
}

TEST_F(CDeviceHome, GradientsOfFp32AreRoundedToTheDtypeOfTheirWeights) {
  for (const uint64_t micro_batches : {1, 2}) {
    const TempFolder folder;
    std::list<DeviceBytes> memory;
    CudaTraining training(kDeviceHome, folder.Path(), "bf16", micro_batches);
    GiveGradients(training, PENSTOCK_FLOAT32, memory, 1.0F + 0x1p-9F);  // rounds to 1 in bf16
    double norm = 0;
    int finite = 0;
    ASSERT_EQ(penstock_norm(training.handle(), &norm, &finite), PENSTOCK_OK) << penstock_error();
    const double biases = kElements[1] * (1 + 0x1p-9) * (1 + 0x1p-9);
    EXPECT_NEAR(norm * norm, kUnits * (static_cast<double>(kElements[0]) + biases), 1e-6);
    ASSERT_EQ(penstock_drop_step(training.handle()), PENSTOCK_OK);
  }
}

TEST_F(CDeviceHome, AMissingGradientIsZeros) {
  for (const uint64_t micro_batches : {1, 2}) {
    const TempFolder folder;
    CudaTraining training(kDeviceHome, folder.Path(), "bf16", micro_batches);
    training.Step();  // leaves gradients where the next ones go
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      for (const uint32_t tensor : {0U, 1U}) {
        ASSERT_EQ(penstock_gradient(training.handle(), unit, tensor, nullptr, PENSTOCK_FLOAT32),
                  PENSTOCK_OK)
            << penstock_error();
      }
    }
    penstock_outcome outcome{};
    ASSERT_EQ(penstock_end_step(training.handle(), kGroups, 2, 0, 1, &outcome), PENSTOCK_OK);
    EXPECT_EQ(outcome.grad_norm, 0);
  }
}

TEST_F(CDeviceHome, WeightsCanBeFetchedToMemoryOfTheHost) {
  const TempFolder folder;
  CudaTraining training(kDeviceHome, folder.Path(), "bf16");
  training.Step();
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    training.Use(unit, PENSTOCK_ASIDE);
    const UnitBuffer fetched = training.host().Use(unit, PENSTOCK_ASIDE);
    for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
      EXPECT_EQ(training.Weights(unit, tensor).bytes, fetched.Tensor(tensor).bytes);
    }
  }
}

TEST_F(CDeviceHome, ThePlanHasWhatItTakesOfTheDeviceAndNoMore) {
  const TempFolder folder;
  const json options{{"folders", {folder.Path()}}, {"host_memory", 1 << 30}, {"cuda", true}};
  for (const uint64_t micro_batches : {1, 2}) {
    const json changes{{"gradient_accumulation_steps", micro_batches}};
    const json plan = PlanOf(ConfigWith(changes, folder.Path()), options);
    const json& bytes = plan["device_home_bytes"];
    EXPECT_EQ(bytes["sums"].get<uint64_t>() > 0, micro_batches > 1);
    EXPECT_EQ(plan["host_bytes"]["sums"], 0);
    EXPECT_EQ(plan["host_bytes"]["arriving"], 0);
    const size_t before = FreeMemory();
    const CEngine engine(ConfigWith(changes, folder.Path()), ModelOf("bf16"), options);
    ASSERT_EQ(engine.code, PENSTOCK_OK) << engine.error;
    EXPECT_EQ(before - FreeMemory(), bytes["total"].get<uint64_t>());
    EXPECT_EQ(bytes["total"].get<uint64_t>(),
              bytes["parameters"].get<uint64_t>() + bytes["gradients"].get<uint64_t>() +
                  bytes["states"].get<uint64_t>() + bytes["sums"].get<uint64_t>());
  }
}

TEST_F(CDeviceHome, TheSmallestHostMemoryIsWhatItTakes) {
  const TempFolder folder;
  const uint64_t least = LeastMemory(kDeviceHome, folder.Path(), "bf16", json::object());
  CudaTraining training(kDeviceHome, folder.Path(), "bf16");
  training.Step();
  CommitPathsOf(training);
  EXPECT_EQ(training.host().engine().Counters()["host_peak_bytes"], least);
  EXPECT_GT(training.host().engine().Counters()["updates"], 0);
}

TEST_F(CDeviceHome, MemoryOfTheHostIsNotWhereItsGradientsAre) {
  const TempFolder folder;
  CudaTraining training(kDeviceHome, folder.Path(), "bf16");
  const std::vector<float> values(kElements[1]);
  EXPECT_EQ(penstock_gradient(training.handle(), 0, 1, values.data(), PENSTOCK_FLOAT32),
            PENSTOCK_INVALID_ARGUMENT);
  EXPECT_THAT(penstock_error(), HasSubstr("give gradients that are there"));
  training.Step();
}

TEST_F(CDeviceHome, OtherThreadsNeedNoContextAndOtherContextsAreRefused) {
  const TempFolder folder;
  CudaTraining training(kDeviceHome, folder.Path(), "bf16");
  ASSERT_EQ(cuCtxSetCurrent(nullptr), 0);
  EXPECT_EQ(training.TryUse(0, PENSTOCK_FORWARD), PENSTOCK_OK) << penstock_error();
  CUcontext context = fake_cuda_context();
  EXPECT_EQ(cuCtxGetCurrent(&context), 0);
  EXPECT_EQ(context, nullptr);  // the call leaves it as it found it
  ASSERT_EQ(cuCtxSetCurrent(fake_cuda_context()), 0);
  EXPECT_EQ(training.TryUse(0, PENSTOCK_FORWARD), PENSTOCK_OK) << penstock_error();
  {
    const Stream other;
    const auto legacy = reinterpret_cast<CUstream>(uintptr_t{1});
    const auto per_thread = reinterpret_cast<CUstream>(uintptr_t{2});
    for (CUstream stream : {other.get(), CUstream{nullptr}, legacy, per_thread}) {
      EXPECT_EQ(penstock_use_on(training.handle(), 0, PENSTOCK_FORWARD,
                                training.weights(0).pointer(), stream),
                PENSTOCK_INVALID_ARGUMENT);
      EXPECT_THAT(penstock_error(), HasSubstr("of another context than that in which"));
    }
  }
  ASSERT_EQ(cuCtxSetCurrent(Context()), 0);
  training.Step();
}

TEST_F(CDeviceHome, ACommitWithinAStepHasTheStateBeforeIt) {
  const TempFolder folder;
  const TempFolder next;
  CudaTraining training(kDeviceHome, folder.Path(), "bf16", 2);
  training.Step();
  training.ForwardAndBackward(0);
  const std::vector<std::string> paths = CommitPathsOf(training);
  const std::string copy = next.Path() + "/copy.state";
  const char* const to[] = {copy.c_str()};
  ASSERT_EQ(penstock_copy_commit(training.handle(), to, 1), PENSTOCK_OK) << penstock_error();
  training.ForwardAndBackward(1);
  penstock_outcome outcome{};
  ASSERT_EQ(penstock_end_step(training.handle(), kGroups, 2, 0, 1, &outcome), PENSTOCK_OK);
  training.Step();
  States expected = TrainOnTheHost("bf16", 2, 0);
  expected.trained.norms.clear();
  EXPECT_TRUE(StatesOf(training, training.handle()) == expected);
  CudaTraining again(kDeviceHome, next.Path(), "bf16", 2, Addresses::kOfUnit,
                     {{"continue", {copy}}});
  again.Step();
  again.Step();
  EXPECT_TRUE(StatesOf(again, again.handle()) == expected);
}

/// The host is not told to wait: a paused device lets a whole backward be enqueued.
TEST_F(CDeviceHome, TheHostWaitsForTheNormAlone) {
  const TempFolder folder;
  CudaTraining training(kDeviceHome, folder.Path(), "bf16", 2);
  training.Step();
  fake_cuda_pause();
  training.ForwardAndBackward(0);
  training.ForwardAndBackward(1);
  fake_cuda_resume();
  penstock_outcome outcome{};
  ASSERT_EQ(penstock_end_step(training.handle(), kGroups, 2, 0, 1, &outcome), PENSTOCK_OK);
  fake_cuda_pause();
  for (uint32_t unit = 0; unit < kUnits; ++unit) training.Use(unit, PENSTOCK_FORWARD);
  fake_cuda_resume();
  ASSERT_EQ(penstock_drop_step(training.handle()), PENSTOCK_OK);
}

}  // namespace
}  // namespace penstock::front
