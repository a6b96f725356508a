// What tests of states that are at home on the device have in common.
#pragma once

#include <string>

#include "tests/front/cuda_training.h"

namespace penstock::front {

inline const Home& kDeviceHome = kHomes[0];

/// Kernels of penstock's, compiled for the host, work on the device's memory.
class DeviceHomeTest : public CudaTest {
 protected:
  void SetUp() override {
    fake_cuda_map_memory();
    fake_cuda_resize(size_t{1} << 30);
    CudaTest::SetUp();
  }
  static size_t FreeMemory() {
    size_t free = 0;
    size_t total = 0;
    EXPECT_EQ(cuMemGetInfo_v2(&free, &total), 0);
    return free;
  }
};

inline json ConfigWith(const json& changes, const std::string& folder) {
  json config = ConfigOf(kDeviceHome, folder);
  config.merge_patch(changes);
  return config;
}

inline json PlanOf(const json& config, const json& options, const std::string& dtype = "bf16") {
  char* text = nullptr;
  EXPECT_EQ(penstock_plan(config.dump().c_str(), ModelOf(dtype).dump().c_str(),
                          options.dump().c_str(), &text),
            PENSTOCK_OK)
      << penstock_error();
  json plan = json::parse(text == nullptr ? "null" : text);
  penstock_free(text);
  return plan;
}

}  // namespace penstock::front
