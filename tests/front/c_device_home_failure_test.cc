// States at home on the device: what is refused, and what fails on the way.
#include "tests/front/device_home.h"

namespace penstock::front {
namespace {

using ::testing::HasSubstr;

using CDeviceHomeFailure = DeviceHomeTest;

json OptionsFor(const TempFolder& folder) {
  return {{"folders", {folder.Path()}}, {"host_memory", 1 << 30}, {"cuda", true}};
}

TEST_F(CDeviceHomeFailure, TooLittleFreeMemoryIsRefusedWithTheSum) {
  const TempFolder folder;
  const json config = ConfigWith(json::object(), folder.Path());
  const auto need =
      PlanOf(config, OptionsFor(folder))["device_home_bytes"]["total"].get<uint64_t>();
  fake_cuda_resize(need - 1);
  const CEngine refused(config, ModelOf("bf16"), OptionsFor(folder));
  EXPECT_EQ(refused.code, PENSTOCK_BUDGET);
  EXPECT_THAT(refused.error, HasSubstr("need " + std::to_string(need) + " bytes (parameters"));
  EXPECT_THAT(refused.error, HasSubstr("free 1 bytes more, or have them in host memory"));
  EXPECT_EQ(FreeMemory(), need - 1);
  fake_cuda_resize(need);
  const CEngine fits(config, ModelOf("bf16"), OptionsFor(folder));
  EXPECT_EQ(fits.code, PENSTOCK_OK) << fits.error;
}

TEST_F(CDeviceHomeFailure, ALimitOfTheConfigurationIsKept) {
  const TempFolder folder;
  const json options = OptionsFor(folder);
  const auto need =
      PlanOf(ConfigWith(json::object(), folder.Path()), options)["device_home_bytes"]["total"]
          .get<uint64_t>();
  json config = ConfigWith({{"penstock", {{"device_memory", need - 1}}}}, folder.Path());
  const json plan = PlanOf(config, options);
  EXPECT_FALSE(plan["fits"].get<bool>());
  EXPECT_THAT(plan["shortage"].get<std::string>(),
              HasSubstr("raise penstock.device_memory to " + std::to_string(need) + " bytes"));
  const CEngine refused(config, ModelOf("bf16"), options);
  EXPECT_EQ(refused.code, PENSTOCK_BUDGET);
  EXPECT_EQ(refused.error, plan["shortage"].get<std::string>());
  config["penstock"]["device_memory"] = need;
  EXPECT_TRUE(PlanOf(config, options)["fits"].get<bool>());
}

TEST_F(CDeviceHomeFailure, AThreadWithoutAContextMakesNone) {
  const TempFolder folder;
  ASSERT_EQ(cuCtxSetCurrent(nullptr), 0);
  const CEngine refused(ConfigWith(json::object(), folder.Path()), ModelOf("bf16"),
                        OptionsFor(folder));
  EXPECT_EQ(refused.code, PENSTOCK_UNAVAILABLE);
  EXPECT_THAT(refused.error, HasSubstr("no current context of CUDA"));
  ASSERT_EQ(cuCtxSetCurrent(Context()), 0);
}

/// Each function fails while the engine is made; all taken resources are given back.
TEST_F(CDeviceHomeFailure, AnEngineThatCannotBeMadeLeavesNothingBehind) {
  for (const char* const function : {"cuMemGetInfo_v2", "cuMemAlloc_v2", "cuMemHostRegister_v2",
                                     "cuStreamCreate", "cuMemsetD8Async", "fake_cuda_launch"}) {
    for (const unsigned after : {0U, 1U}) {
      const TempFolder folder;
      const size_t before = FreeMemory();
      fake_cuda_fail(function, after, 2);
      {
        const CEngine engine(ConfigWith(json::object(), folder.Path()), ModelOf("bf16"),
                             OptionsFor(folder));
        if (after == 0) {
          EXPECT_NE(engine.code, PENSTOCK_OK) << function;
          EXPECT_THAT(engine.error, HasSubstr("OUT_OF_MEMORY")) << function;
        }
        fake_cuda_fail(function, 0, 0);  // what has not failed by now does not
        static_cast<void>(fake_cuda_registered());
      }
      EXPECT_EQ(FreeMemory(), before) << function;
      EXPECT_EQ(fake_cuda_registered(), 0) << function;
      SetUp();  // a failure that is left over is not the next one's
    }
  }
}

/// A training with a commit, and what one step more does when a function fails in it.
TEST_F(CDeviceHomeFailure, AFailureInAStepStaysAndTheLastCommitStands) {
  for (const char* const function :
       {"fake_cuda_launch", "cuMemcpyDtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuEventRecord"}) {
    const TempFolder folder;
    std::vector<std::string> paths;
    {
      CudaTraining training(kDeviceHome, folder.Path(), "bf16");
      training.Step();
      ASSERT_EQ(penstock_begin_commit(training.handle(), "{}"), PENSTOCK_OK);
      ASSERT_EQ(penstock_finish_commit(training.handle()), PENSTOCK_OK);
      paths = training.host().engine().Describe()["state_paths"];
      training.ForwardAndBackward(0);
      fake_cuda_fail(function, 0, 700);
      std::list<DeviceBytes> memory;
      int code = training.TryUse(0, PENSTOCK_ASIDE);
      penstock_outcome outcome{};
      if (code == PENSTOCK_OK) {
        code = penstock_end_step(training.handle(), kGroups, 2, 0, 1, &outcome);
      }
      if (code == PENSTOCK_OK) code = penstock_drain(training.handle());
      EXPECT_EQ(code, PENSTOCK_UNAVAILABLE) << function;
      EXPECT_THAT(penstock_error(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS")) << function;
      EXPECT_EQ(penstock_drain(training.handle()), PENSTOCK_UNAVAILABLE) << function;
      EXPECT_EQ(penstock_begin_commit(training.handle(), "{}") == PENSTOCK_OK &&
                    penstock_finish_commit(training.handle()) == PENSTOCK_OK,
                false)
          << function;
    }
    CudaTraining again(kDeviceHome, folder.Path(), "bf16", 1, Addresses::kOfUnit,
                       {{"continue", paths}});
    EXPECT_EQ(again.host().engine().Describe()["step"], 1) << function;
    again.Step();
  }
}

/// A caller that only evaluates ends no step, in which it would hear of it.
TEST_F(CDeviceHomeFailure, ACallWhoseCopyIsNotEnqueuedSaysSo) {
  for (const char* const function : {"cuMemcpyDtoDAsync_v2", "cuEventRecord"}) {
    for (const bool weights : {true, false}) {
      const TempFolder folder;
      CudaTraining training(kDeviceHome, folder.Path(), "bf16");
      training.Step();
      const DeviceBytes gradient(2 * kElements[0]);
      fake_cuda_fail(function, 0, 700);
      const int code =
          weights ? training.TryUse(0, PENSTOCK_ASIDE) : training.TryGradient(0, 0, gradient);
      EXPECT_EQ(code, PENSTOCK_UNAVAILABLE) << function;
      EXPECT_THAT(penstock_error(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS")) << function;
      EXPECT_EQ(training.TryUse(0, PENSTOCK_ASIDE), PENSTOCK_UNAVAILABLE) << function;
    }
  }
}

TEST_F(CDeviceHomeFailure, ADeviceThatFailsEndsTheTraining) {
  const TempFolder folder;
  {
    CudaTraining training(kDeviceHome, folder.Path(), "bf16");
    training.Step();
    training.ForwardAndBackward(0);
    fake_cuda_break(700);
    penstock_outcome outcome{};
    EXPECT_EQ(penstock_end_step(training.handle(), kGroups, 2, 0, 1, &outcome),
              PENSTOCK_UNAVAILABLE);
    fake_cuda_break(0);
    EXPECT_EQ(penstock_drain(training.handle()), PENSTOCK_UNAVAILABLE);
  }
}

}  // namespace
}  // namespace penstock::front
