// The C interface with memory of a device: which memory of the host it takes and registers, and
// where micro-batches are added up.
#include <fstream>
#include <limits>
#include <sstream>

#include "tests/front/cuda_training.h"

namespace penstock::front {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

using CCudaMemory = CudaTest;

json PlanOf(const json& config, const json& model, const json& options) {
  char* text = nullptr;
  EXPECT_EQ(
      penstock_plan(config.dump().c_str(), model.dump().c_str(), options.dump().c_str(), &text),
      PENSTOCK_OK)
      << penstock_error();
  json plan = json::parse(text == nullptr ? "null" : text);
  penstock_free(text);
  return plan;
}

TEST_F(CCudaMemory, ThePlanHasTheRoomInWhichGradientsArrive) {
  const TempFolder folder;
  const std::string config = ConfigOf(kHomes[3], folder.Path()).dump();
  json plans[2];
  for (const bool cuda : {false, true}) {
    char* text = nullptr;
    const json options{{"folders", {folder.Path()}}, {"host_memory", 1 << 30}, {"cuda", cuda}};
    ASSERT_EQ(penstock_plan(config.c_str(), ModelOf("bf16").dump().c_str(), options.dump().c_str(),
                            &text),
              PENSTOCK_OK)
        << penstock_error();
    plans[cuda] = json::parse(text);
    penstock_free(text);
  }
  const auto arriving = plans[1]["host_bytes"]["arriving"].get<uint64_t>();
  EXPECT_EQ(plans[0]["host_bytes"]["arriving"], 0);
  EXPECT_EQ(arriving, 8 * 36864);  // eight times 100 x 91 fp32, in whole pages
  EXPECT_EQ(plans[1]["host_minimum"].get<uint64_t>(),
            plans[0]["host_minimum"].get<uint64_t>() + arriving);
  CudaTraining training(kHomes[3], folder.Path(), "bf16");  // in the smallest budget
  training.Step();
  training.Step();
  EXPECT_EQ(training.host().engine().Counters()["host_peak_bytes"], plans[1]["host_minimum"]);
}

TEST_F(CCudaMemory, TheRoomGrowsToAMicroBatchWhereMemoryIsLeftAndTheMinimumDoesNot) {
  constexpr uint64_t kLarge = 40 << 20;
  const TempFolder folder;
  json model = ModelOf("bf16");
  model["units"][0]["tensors"][0]["shape"] = {kLarge};
  const auto plan = [&](uint64_t micro_batches, uint64_t host_memory) {
    return PlanOf(ConfigOf(kHomes[1], folder.Path(), micro_batches), model,
                  {{"folders", {folder.Path()}}, {"host_memory", host_memory}, {"cuda", true}});
  };
  const auto arriving = [](const json& plan) {
    return plan["host_bytes"]["arriving"].get<uint64_t>();
  };
  constexpr uint64_t kMib = 1 << 20;
  EXPECT_EQ(arriving(plan(1, uint64_t{64} << 30)), 32 * kMib) << "hardly anything comes through it";
  const json ample = plan(3, uint64_t{64} << 30);
  EXPECT_GE(arriving(ample), 2 * kLarge);
  EXPECT_LT(arriving(ample), 2 * kLarge + kMib);
  const auto minimum = ample["host_minimum"].get<uint64_t>();
  const json tight = plan(3, minimum);
  EXPECT_TRUE(tight["fits"]);
  EXPECT_EQ(arriving(tight), 32 * kMib);
  EXPECT_EQ(tight["host_minimum"], minimum);
  const json between = plan(3, minimum - 32 * kMib + 16 * 40 * kMib);
  EXPECT_EQ(arriving(between), 40 * kMib) << "a sixteenth of what is left";
  EXPECT_LE(between["host_bytes"]["total"].get<uint64_t>(), between["host_limit"].get<uint64_t>());
}

TEST_F(CCudaMemory, OnlyWhatIsCopiedIsRegisteredAndItIsCounted) {
  for (const Home& home : kHomes) {
    if (home.optimizer == "none") continue;  // c_device_home_test.cc
    const TempFolder folder;
    CudaTraining training(home, folder.Path(), "bf16", 3);
    const auto counted = [&] {
      return training.host().engine().Counters()["registered_bytes"].get<uint64_t>();
    };
    EXPECT_EQ(counted(), 0) << "before the first copy";
    training.Step();
    const json bytes =
        PlanOf(ConfigOf(home, folder.Path(), 3), ModelOf("bf16"),
               {{"folders", {folder.Path()}},
                {"cuda", true},
                {"host_memory", LeastMemory(home, folder.Path(), "bf16",
                                            {{"gradient_accumulation_steps", 3}})}})["host_bytes"];
    const auto copied = bytes["parameters"].get<uint64_t>() + bytes["gradients"].get<uint64_t>() +
                        bytes["arriving"].get<uint64_t>();
    EXPECT_EQ(fake_cuda_registered_bytes(), counted()) << home.name;
    EXPECT_LE(counted(), copied) << home.name;
    EXPECT_GT(bytes["states"].get<uint64_t>(), 0) << home.name;
  }
}

/// How much memory of this process its children do not have.
uint64_t KeptFromChildren() {
  std::ifstream smaps("/proc/self/smaps");
  uint64_t kept = 0;
  uint64_t size = 0;
  for (std::string line; std::getline(smaps, line);) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    if (key == "Size:") words >> size;
    if (key != "VmFlags:") continue;
    for (std::string flag; words >> flag;) {
      if (flag == "dc") kept += size << 10;
    }
  }
  return kept;
}

TEST_F(CCudaMemory, ForksDoNotHaveWhatADeviceCopies) {
  const TempFolder folder;
  const uint64_t before = KeptFromChildren();
  CudaTraining training(kHomes[1], folder.Path(), "bf16", 3);
  training.Step();
  EXPECT_GE(KeptFromChildren(), before + fake_cuda_registered_bytes());
}

/// Gives each tensor's sum of `micro_batches` once, as the caller has added it up, and returns what
/// the step comes to. `as_weights`: rounded to the dtype of the weight.
Trained TrainWithSums(CEngine& engine, const Stream& stream, uint64_t micro_batches,
                      bool as_weights) {
  std::list<DeviceBytes> sums;
  std::vector<Values> first;
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    first.clear();
    const void* tensors[kTensors];
    for (uint32_t i = 0; i < kTensors; ++i) {
      first.push_back(FirstWeights(i == 1 ? PENSTOCK_FLOAT32 : PENSTOCK_BFLOAT16, unit, i));
    }
    for (uint32_t i = 0; i < kTensors; ++i) tensors[i] = first[i].bytes.data();
    EXPECT_EQ(penstock_fill(engine.handle, unit, tensors), PENSTOCK_OK);
  }
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    for (const uint32_t tensor : {0U, 1U}) {
      const Values weight =
          FirstWeights(tensor == 1 ? PENSTOCK_FLOAT32 : PENSTOCK_BFLOAT16, unit, tensor);
      Values sum(as_weights ? weight.dtype : int{PENSTOCK_FLOAT32}, kElements[tensor]);
      std::vector<float> added(kElements[tensor]);
      for (uint64_t batch = 0; batch < micro_batches; ++batch) {
        const Values gradient = GradientOf(weight, batch);
        for (uint64_t i = 0; i < added.size(); ++i) {
          added[i] = batch == 0 ? gradient.At(i) : added[i] + gradient.At(i);
        }
      }
      for (uint64_t i = 0; i < added.size(); ++i) sum.Set(i, added[i]);
      const DeviceBytes& given = sums.emplace_back(sum.bytes.size());
      std::memcpy(given.bytes(), sum.bytes.data(), sum.bytes.size());
      EXPECT_EQ(penstock_gradient_on(engine.handle, unit, tensor, given.pointer(), sum.dtype,
                                     stream.get()),
                PENSTOCK_OK)
          << penstock_error();
    }
  }
  Trained trained;
  penstock_outcome outcome{};
  EXPECT_EQ(penstock_end_step(engine.handle, kGroups, 2, 0, 1, &outcome), PENSTOCK_OK)
      << penstock_error();
  trained.norms.push_back(outcome.grad_norm);
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
      trained.masters.emplace_back(kElements[tensor]);
      EXPECT_EQ(penstock_read(engine.handle, unit, tensor, PENSTOCK_MASTER, 0, kElements[tensor],
                              trained.masters.back().data()),
                PENSTOCK_OK);
    }
  }
  return trained;
}

TEST_F(CCudaMemory, SumsOfTheCallerTrainToTheBitsOfSumsOfTheEngine) {
  constexpr uint64_t kMicroBatches = 3;
  const TempFolder on_host;
  CTraining host(kHomes[1], on_host.Path(), "bf16", kMicroBatches, json::object(),
                 {{"gradient_accumulation_steps", kMicroBatches}});
  host.Fill();
  Trained expected;
  expected.norms.push_back(host.Step().grad_norm);
  host.ReadInto(&expected);
  for (const Home& home : kHomes) {
    if (home.optimizer == "none") continue;  // c_device_home_test.cc
    for (const bool as_weights : {false, true}) {
      const TempFolder folder;
      const Stream stream;
      CEngine engine(ConfigOf(home, folder.Path(), kMicroBatches), ModelOf("bf16"),
                     {{"folders", {folder.Path()}}, {"cuda", true}, {"device_sums", 1 << 20}});
      ASSERT_EQ(engine.code, PENSTOCK_OK) << engine.error;
      EXPECT_TRUE(engine.Describe()["sums_on_device"]);
      const Trained trained = TrainWithSums(engine, stream, kMicroBatches, as_weights);
      EXPECT_EQ(trained.norms, expected.norms) << home.name;
      EXPECT_EQ(trained.masters, expected.masters) << home.name;
    }
  }
}

TEST_F(CCudaMemory, WhereSumsAreIsPlannedByWhatTheDeviceSparesAndTold) {
  const TempFolder folder;
  constexpr uint64_t kNeed = 4 * kUnits * (100 * 91 + 13);
  const auto plan = [&](uint64_t micro_batches, const json& spared) {
    json options{{"folders", {folder.Path()}}, {"cuda", true}, {"host_memory", 1 << 30}};
    if (!spared.is_null()) options["device_sums"] = spared;
    return PlanOf(ConfigOf(kHomes[1], folder.Path(), micro_batches), ModelOf("bf16"), options);
  };
  const json host = plan(3, kNeed - 1);
  const json device = plan(3, kNeed);
  EXPECT_EQ(host["device_bytes"]["sums"], 0);
  EXPECT_GT(host["host_bytes"]["sums"], 0);
  EXPECT_THAT(host["notices"], Contains(HasSubstr("3 micro-batches are added up in host memory")));
  EXPECT_EQ(device["device_bytes"]["sums"], kNeed);
  EXPECT_EQ(device["host_bytes"]["sums"], 0);
  EXPECT_THAT(device["notices"],
              Contains(HasSubstr("3 micro-batches are added up in device memory")));
  EXPECT_EQ(plan(1, kNeed)["device_bytes"]["sums"], 0) << "there is nothing to add up";
  EXPECT_EQ(plan(3, nullptr)["device_bytes"]["sums"], 0) << "the caller adds up nothing";
}

TEST_F(CCudaMemory, ASecondGradientOfATensorIsRefusedWhereTheCallerAddsUp) {
  const TempFolder folder;
  CudaTraining training(kHomes[1], folder.Path(), "bf16", 3, Addresses::kOfUnit,
                        {{"device_sums", 1 << 20}});
  const DeviceBytes gradient(2 * kElements[0]);
  EXPECT_EQ(training.TryGradient(0, 0, gradient), PENSTOCK_OK);
  EXPECT_EQ(training.TryGradient(0, 0, gradient), PENSTOCK_INVALID_ARGUMENT);
  EXPECT_THAT(penstock_error(), HasSubstr("one if the caller adds up micro-batches"));
  EXPECT_EQ(penstock_drop_step(training.handle()), PENSTOCK_OK);
}

}  // namespace
}  // namespace penstock::front
