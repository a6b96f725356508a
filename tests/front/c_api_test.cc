// The C interface: bits, order, commits.
#include <gmock/gmock.h>

#include <filesystem>
#include <thread>

#include "tests/base/denormals_flush.h"
#include "tests/front/plain_training.h"

namespace penstock::front {
namespace {

using ::testing::HasSubstr;

json MicroBatches(uint64_t count) { return {{"gradient_accumulation_steps", count}}; }

Trained Train(const Home& home, const std::string& dtype, uint64_t micro_batches,
              double max_norm = 0) {
  const TempFolder folder;
  CTraining training(home, folder.Path(), dtype, micro_batches, json::object(),
                     MicroBatches(micro_batches));
  training.Fill();
  Trained trained;
  for (uint64_t step = 0; step < kSteps; ++step) {
    trained.norms.push_back(training.Step(max_norm).grad_norm);
  }
  training.ReadInto(&trained);
  return trained;
}

TEST(CApiTest, EveryHomeAndDtypeTrainsToTheBitsOfPlainMemory) {
  for (const std::string dtype : {"fp32", "bf16", "fp16"}) {
    for (const uint64_t micro_batches : {1, 3}) {
      const Trained expected = TrainPlainly(dtype, micro_batches);
      for (const Home& home : kHomes) {
        const Trained trained = Train(home, dtype, micro_batches);
        EXPECT_EQ(trained.norms, expected.norms) << dtype << ", " << home.name;
        EXPECT_TRUE(trained.weights == expected.weights) << dtype << ", " << home.name;
        EXPECT_TRUE(trained.masters == expected.masters) << dtype << ", " << home.name;
      }
    }
  }
}

TEST(CApiTest, ClippingByTheCallDividesAsDeepSpeedDoes) {
  const Trained expected = TrainPlainly("bf16", 1, 0.5);
  EXPECT_TRUE(Train(kHomes[3], "bf16", 1, 0.5) == expected);
  EXPECT_GT(expected.norms.front(), 0.5) << "nothing was clipped";
  EXPECT_FALSE(TrainPlainly("bf16", 1) == expected);
}

TEST(CApiTest, ALossScaleIsTakenOutOfNormAndUpdate) {
  Trained trained[2];
  for (const float scale : {1.0F, 1024.0F}) {
    const TempFolder folder;
    CTraining training(kHomes[1], folder.Path(), "fp32");
    training.Fill();
    penstock_outcome outcome{};
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      training.Use(unit, PENSTOCK_FORWARD);
      for (const uint32_t tensor : {0U, 1U}) {
        Values gradient(PENSTOCK_FLOAT32, kElements[tensor]);
        for (uint64_t i = 0; i < kElements[tensor]; ++i) gradient.Set(i, scale * 0.25F);
        ASSERT_EQ(penstock_gradient(training.engine().handle, unit, tensor, gradient.bytes.data(),
                                    PENSTOCK_FLOAT32),
                  PENSTOCK_OK);
      }
    }
    ASSERT_EQ(penstock_end_step(training.engine().handle, kGroups, 2, 1, scale, &outcome),
              PENSTOCK_OK);
    Trained& mine = trained[scale == 1 ? 0 : 1];
    mine.norms.push_back(outcome.grad_norm);
    training.ReadInto(&mine);
  }
  EXPECT_TRUE(trained[0] == trained[1]);
}

/// The first moment of a tensor after a step of two micro-batches with denormal gradients.
std::vector<float> MomentOfDenormals() {
  const TempFolder folder;
  CTraining training(kHomes[3], folder.Path(), "fp32", 2, json::object(), MicroBatches(2));
  training.Fill();
  for (uint64_t micro_batch = 0; micro_batch < 2; ++micro_batch) {
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      for (const uint32_t tensor : {0U, 1U}) {
        const std::vector<uint32_t> bits(kElements[tensor], 0x00012345);  // about 1e-40
        EXPECT_EQ(penstock_gradient(training.engine().handle, unit, tensor, bits.data(),
                                    PENSTOCK_FLOAT32),
                  PENSTOCK_OK)
            << penstock_error();
      }
    }
  }
  penstock_outcome outcome{};
  EXPECT_EQ(penstock_end_step(training.engine().handle, kGroups, 2, 0, 1, &outcome), PENSTOCK_OK);
  std::vector<float> moment(kElements[0]);
  EXPECT_EQ(penstock_read(training.engine().handle, 0, 0, PENSTOCK_EXP_AVG, 0, moment.size(),
                          moment.data()),
            PENSTOCK_OK)
      << penstock_error();
  return moment;
}

TEST(CApiTest, ACallerThatFlushesDenormalsGetsTheSameBitsAndStillFlushes) {
  const std::vector<float> expected = MomentOfDenormals();
  for (const uint64_t way : kFlushes) {
    const DenormalsFlush flush(way);
    const std::vector<float> moment = MomentOfDenormals();
    EXPECT_EQ(std::memcmp(moment.data(), expected.data(), moment.size() * sizeof(float)), 0);
    EXPECT_EQ(FloatControl() & way, way);
  }
  uint32_t first = 0;
  std::memcpy(&first, expected.data(), sizeof(first));
  EXPECT_NE(first, 0U) << "nothing was denormal";
}

TEST(CApiTest, ANewOrderIsServedLateOnceAndPlannedFromThenOn) {
  const TempFolder folder;
  CTraining training(kHomes[3], folder.Path(), "bf16");
  training.Fill();
  std::vector<uint64_t> late;
  for (int step = 0; step < 3; ++step) {
    for (const uint32_t unit : {0U, 2U, 1U, 3U, 2U}) training.Use(unit, PENSTOCK_FORWARD);
    const uint64_t before = training.engine().Counters()["late_uses"].get<uint64_t>();
    training.Step();
    late.push_back(training.engine().Counters()["late_uses"].get<uint64_t>());
    if (step > 0) {
      EXPECT_EQ(before, late[0]) << "step " << step;
    }
  }
  EXPECT_GT(late[0], 0);
  EXPECT_EQ(late[1], late[0]);
  EXPECT_EQ(late[2], late[0]);
}

TEST(CApiTest, TensorsInMemoryOfTheirOwnAreBroughtAsThoseOfABuffer) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    for (const Home& home : kHomes) {
      const TempFolder folder;
      CTraining training(home, folder.Path(), dtype);
      training.Fill();
      training.Step();
      for (uint32_t unit = 0; unit < kUnits; ++unit) {
        std::vector<Values> apart;
        std::vector<void*> addresses;
        for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
          apart.emplace_back(tensor == 1 ? PENSTOCK_FLOAT32 : CodeOf(dtype), kElements[tensor]);
          addresses.push_back(apart.back().bytes.data());
        }
        ASSERT_EQ(penstock_use_tensors(training.engine().handle, unit, PENSTOCK_FORWARD,
                                       addresses.data()),
                  PENSTOCK_OK)
            << penstock_error();
        const UnitBuffer buffer = training.Use(unit, PENSTOCK_ASIDE);
        for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
          EXPECT_EQ(apart[tensor].bytes, buffer.Tensor(tensor).bytes) << home.name;
        }
      }
    }
  }
}

TEST(CApiTest, UsesAsideChangeNeitherBitsNorOrder) {
  const Trained expected = TrainPlainly("fp32", 1);
  const TempFolder folder;
  CTraining training(kHomes[3], folder.Path(), "fp32");
  training.Fill();
  Trained trained;
  for (uint64_t step = 0; step < kSteps; ++step) {
    training.Use(3, PENSTOCK_ASIDE);
    trained.norms.push_back(training.Step().grad_norm);
    for (const uint32_t unit : {3U, 0U, 2U}) training.Use(unit, PENSTOCK_ASIDE);
  }
  training.ReadInto(&trained);
  EXPECT_TRUE(trained == expected);
  EXPECT_EQ(training.engine().Counters()["late_uses"], 0);
}

TEST(CApiTest, ADroppedStepChangesNothing) {
  const Trained expected = TrainPlainly("bf16", 1);
  const TempFolder folder;
  CTraining training(kHomes[3], folder.Path(), "bf16");
  training.Fill();
  Trained trained;
  for (uint64_t step = 0; step < kSteps; ++step) {
    training.ForwardAndBackward(7);
    if (step % 2 == 0) {
      double norm = 0;
      int finite = 0;
      ASSERT_EQ(penstock_norm(training.engine().handle, &norm, &finite), PENSTOCK_OK);
    }
    ASSERT_EQ(penstock_drop_step(training.engine().handle), PENSTOCK_OK) << penstock_error();
    training.Use(1, PENSTOCK_FORWARD);
    ASSERT_EQ(penstock_drop_step(training.engine().handle), PENSTOCK_OK) << penstock_error();
    trained.norms.push_back(training.Step().grad_norm);
  }
  training.ReadInto(&trained);
  EXPECT_TRUE(trained == expected);
}

TEST(CApiTest, AGradientThatIsNotFiniteSkipsTheStepAndTwentyInARowEndTheTraining) {
  const TempFolder folder;
  CTraining training(kHomes[3], folder.Path(), "fp32");
  training.Fill();
  Trained before;
  training.ReadInto(&before);
  const Values nan = [] {
    Values values(PENSTOCK_FLOAT32, kElements[0]);
    values.Set(11, std::nanf(""));
    return values;
  }();
  penstock_outcome outcome{};
  for (int step = 0; step < 20; ++step) {
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      training.Use(unit, PENSTOCK_FORWARD);
      for (const uint32_t tensor : {0U, 1U}) {
        const void* values = unit == 2 && tensor == 0 ? nan.bytes.data() : nullptr;
        ASSERT_EQ(
            penstock_gradient(training.engine().handle, unit, tensor, values, PENSTOCK_FLOAT32),
            PENSTOCK_OK);
      }
    }
    ASSERT_EQ(penstock_end_step(training.engine().handle, kGroups, 2, 0, 1, &outcome), PENSTOCK_OK);
    EXPECT_EQ(outcome.skipped, 1);
    EXPECT_EQ(outcome.optimizer_steps, 0);
  }
  Trained after;
  training.ReadInto(&after);
  EXPECT_TRUE(after == before);
  EXPECT_EQ(penstock_use(training.engine().handle, 0, PENSTOCK_FORWARD, nullptr), PENSTOCK_NUMERIC);
  EXPECT_THAT(penstock_error(), HasSubstr("20 steps in a row"));
}

TEST(CApiTest, ACommitIsContinuedInItsFilesOrMovedWithTheSameBits) {
  const Trained expected = TrainPlainly("bf16", 1);
  for (const Home& target : kHomes) {
    const TempFolder folder;
    Trained trained;
    std::vector<std::string> paths;
    {
      CTraining training(kHomes[3], folder.Path(), "bf16");
      training.Fill();
      for (int step = 0; step < 2; ++step) trained.norms.push_back(training.Step().grad_norm);
      ASSERT_EQ(penstock_begin_commit(training.engine().handle, R"({"mine": [1, 2]})"),
                PENSTOCK_OK);
      training.ForwardAndBackward(0);  // the next step goes on meanwhile, and is lost
      ASSERT_EQ(penstock_finish_commit(training.engine().handle), PENSTOCK_OK) << penstock_error();
      paths = training.description()["state_paths"].get<std::vector<std::string>>();
    }
    const bool in_place = target.name == "nvme";
    const json tiles{{"penstock", {{"tile_elements", in_place ? 4096 : 8192}}}};
    CTraining training(target, folder.Path(), "bf16", 1, {{"continue", paths}}, tiles);
    EXPECT_EQ(training.description()["moved"], !in_place) << target.name;
    EXPECT_EQ(training.description()["step"], 2);
    EXPECT_EQ(training.engine().Text(penstock_continued), json({{"mine", {1, 2}}}));
    if (!in_place) {
      for (const std::string& path : paths) EXPECT_TRUE(std::filesystem::exists(path));
    }
    for (int step = 0; step < 2; ++step) trained.norms.push_back(training.Step().grad_norm);
    training.ReadInto(&trained);
    EXPECT_TRUE(trained == expected) << target.name;
  }
}

TEST(CApiTest, ACommitBetweenNormAndUpdateHasTheStateBefore) {
  const TempFolder folder;
  Trained before;
  std::vector<std::string> paths;
  {
    CTraining training(kHomes[3], folder.Path(), "bf16");
    training.Fill();
    training.Step();
    training.ReadInto(&before);
    training.ForwardAndBackward(0);
    penstock_engine* const handle = training.engine().handle;
    double norm = 0;
    int finite = 0;
    penstock_outcome outcome{};
    ASSERT_EQ(penstock_norm(handle, &norm, &finite), PENSTOCK_OK);
    ASSERT_EQ(penstock_begin_commit(handle, "{}"), PENSTOCK_OK);
    ASSERT_EQ(penstock_end_step(handle, kGroups, 2, 0, 1, &outcome), PENSTOCK_OK);
    ASSERT_EQ(penstock_finish_commit(handle), PENSTOCK_OK) << penstock_error();
    paths = training.description()["state_paths"].get<std::vector<std::string>>();
  }
  CTraining training(kHomes[3], folder.Path(), "bf16", 1, {{"continue", paths}});
  EXPECT_EQ(training.description()["step"], 1);
  Trained after;
  training.ReadInto(&after);
  EXPECT_TRUE(after == before);
}

TEST(CApiTest, AStateWithoutACommitGoesWithItsEngine) {
  const TempFolder folder;
  std::vector<std::string> paths;
  {
    CTraining training(kHomes[3], folder.Path(), "bf16");
    training.Fill();
    training.Step();
    paths = training.description()["state_paths"].get<std::vector<std::string>>();
  }
  const CEngine engine(ConfigOf(kHomes[3], folder.Path()), ModelOf("bf16"),
                       {{"folders", {folder.Path()}}, {"continue", paths}});
  EXPECT_EQ(engine.code, PENSTOCK_NOT_FOUND);
  EXPECT_THAT(engine.error, HasSubstr(paths[0]));
}

TEST(CApiTest, AnotherModelDoesNotContinueACommit) {
  const TempFolder folder;
  std::vector<std::string> paths;
  {
    CTraining training(kHomes[3], folder.Path(), "bf16");
    training.Fill();
    ASSERT_EQ(penstock_begin_commit(training.engine().handle, "{}"), PENSTOCK_OK);
    ASSERT_EQ(penstock_finish_commit(training.engine().handle), PENSTOCK_OK);
    paths = training.description()["state_paths"].get<std::vector<std::string>>();
  }
  const CEngine engine(ConfigOf(kHomes[3], folder.Path()), ModelOf("fp32"),
                       {{"folders", {folder.Path()}}, {"continue", paths}});
  EXPECT_EQ(engine.code, PENSTOCK_INVALID_ARGUMENT);
  EXPECT_THAT(engine.error, HasSubstr("has other tensors, dtypes, groups"));
}

TEST(CApiTest, APlanNamesThePeakOfTheEngineAndItsShortage) {
  const TempFolder folder;
  for (const Home& home : kHomes) {
    const std::string config = ConfigOf(home, folder.Path(), 2).dump();
    const auto plan_of = [&](uint64_t host) {
      char* text = nullptr;
      const json options{{"folders", {folder.Path()}}, {"host_memory", host}};
      EXPECT_EQ(penstock_plan(config.c_str(), ModelOf("bf16").dump().c_str(),
                              options.dump().c_str(), &text),
                PENSTOCK_OK)
          << penstock_error();
      json plan = json::parse(text);
      penstock_free(text);
      return plan;
    };
    const json ample = plan_of(uint64_t{1} << 30);
    ASSERT_TRUE(ample["fits"].get<bool>());
    const auto least = ample["host_minimum"].get<uint64_t>();
    EXPECT_FALSE(plan_of(least - 1)["fits"].get<bool>()) << home.name;
    EXPECT_THAT(plan_of(least - 1)["shortage"].get<std::string>(), HasSubstr("host memory"));
    ASSERT_TRUE(plan_of(least)["fits"].get<bool>()) << home.name;
    CTraining training(home, folder.Path(), "bf16", 2, {{"host_memory", least}}, MicroBatches(2));
    training.Fill();
    training.Step();
    training.Step();
    EXPECT_EQ(training.engine().Counters()["host_peak_bytes"],
              plan_of(least)["host_bytes"]["total"])
        << home.name;
    const auto paths = training.description()["state_paths"].get<std::vector<std::string>>();
    EXPECT_EQ(std::filesystem::file_size(paths[0]), ample["state_file_bytes"]) << home.name;
  }
}

TEST(CApiTest, CallsOfSeveralThreadsWaitForEachOther) {
  const TempFolder folder;
  CTraining training(kHomes[3], folder.Path(), "bf16");
  training.Fill();
  std::vector<std::thread> threads;
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    threads.emplace_back([&, unit] {
      for (int i = 0; i < 20; ++i) {
        UnitBuffer buffer(training.engine().Describe(), unit, PENSTOCK_BFLOAT16);
        EXPECT_EQ(penstock_use(training.engine().handle, unit, PENSTOCK_ASIDE, buffer.data()),
                  PENSTOCK_OK);
        EXPECT_EQ(buffer.Tensor(0).bytes, FirstWeights(PENSTOCK_BFLOAT16, unit, 0).bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace penstock::front
