#include "train/plan/node_share.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

namespace penstock::train {
namespace {

std::vector<Core> SomeCores(int count) {
  std::vector<Core> cores;
  for (int cpu = 0; cpu < count; ++cpu) cores.push_back({.cpus = {cpu}});
  return cores;
}

TEST(PartOfCores, PartsCoverTheCoresOnceAndDifferByOneAtMost) {
  for (int count = 1; count <= 17; ++count) {
    for (uint32_t ranks = 1; ranks <= static_cast<uint32_t>(count); ++ranks) {
      int next = 0;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        const std::vector<Core> part = PartOf(SomeCores(count), rank, ranks);
        const auto size = static_cast<uint32_t>(part.size());
        EXPECT_GE(size, count / ranks);
        EXPECT_LE(size, count / ranks + 1);
        for (const Core& core : part) EXPECT_EQ(core.cpus.front(), next++);
      }
      EXPECT_EQ(next, count);
    }
  }
}

TEST(PartOfCores, MoreRanksThanCoresHaveOneEach) {
  for (uint32_t rank = 0; rank < 5; ++rank) {
    const std::vector<Core> part = PartOf(SomeCores(2), rank, 5);
    ASSERT_EQ(part.size(), 1U);
    EXPECT_EQ(part.front().cpus.front(), static_cast<int>(rank % 2));
  }
}

TEST(VisibleGpu, IsTheOneOfTheRankAmongThoseThatAreShown) {
  EXPECT_EQ(VisibleGpu(std::nullopt, 3), "3");
  EXPECT_EQ(VisibleGpu("4,5,6", 1), "5");
  EXPECT_EQ(VisibleGpu("GPU-a,GPU-b", 1), "GPU-b");
}

TEST(PrepareCuda, KernelsAreLoadedAtTheStartUnlessTheUserSaysOtherwise) {
  // NOLINTBEGIN(concurrency-mt-unsafe): no other thread is running
  for (const auto* const variable : {"CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES"}) {
    ::unsetenv(variable);
  }
  const auto environment = [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  PrepareCuda(environment, 1);
  EXPECT_EQ(environment("CUDA_MODULE_LOADING"), "EAGER");
  EXPECT_EQ(environment("CUDA_VISIBLE_DEVICES"), "1");
  ::setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  PrepareCuda(environment, 0);
  EXPECT_EQ(environment("CUDA_MODULE_LOADING"), "LAZY");
  for (const auto* const variable : {"CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES"}) {
    ::unsetenv(variable);
  }
  // NOLINTEND(concurrency-mt-unsafe)
}

TEST(VisibleGpu, WhatShowsFewerGpusThanRanksStays) {
  EXPECT_EQ(VisibleGpu("7", 1), std::nullopt) << "the launcher shows each rank one";
  EXPECT_EQ(VisibleGpu("", 0), std::nullopt) << "the user hides all";
}

}  // namespace
}  // namespace penstock::train
