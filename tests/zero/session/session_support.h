// A session of the toy model, and the placements with which it is tested.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "tests/zero/engine_support.h"
#include "zero/session/session.h"

namespace penstock::zero {

inline const Placement kDevice = {
    .name = "device", .parameters = Tier::kDevice, .optimizer = Tier::kDevice};
inline const Placement kHost = {
    .name = "host", .parameters = Tier::kHost, .optimizer = Tier::kHost};
inline const Placement kNvme = {.name = "nvme"};
inline const Placement kNvmeWithGradients = {.name = "nvme, with gradients",
                                             .with_gradients = true};

class SessionTest : public EngineTest {
 protected:
  std::unique_ptr<ToyRun> Begin(const EngineOptions& options) {
    auto run = std::make_unique<ToyRun>(options, 64_MiB);
    EXPECT_TRUE(run->created().ok()) << run->created().error().message;
    EXPECT_TRUE(run->session().Initialize(ToyWeights).ok());
    return run;
  }
};

}  // namespace penstock::zero
