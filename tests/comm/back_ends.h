// The back ends that the contract's tests run over. An executable has one implementation of
// BackEnds(): back_ends_cpu.cc or back_ends_cuda.cc.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "tests/comm/ranks.h"
#include "tests/gpu_needed.h"

namespace penstock::comm {

struct BackEnd {
  std::string name;
  /// Why this machine or build cannot; nothing if it can.
  std::function<std::optional<std::string>(uint32_t ranks)> missing;
  /// Makes ranks, each of which has a device of kRankMemory.
  std::function<Result<Ranks>(uint32_t ranks)> make;
};
std::vector<BackEnd> BackEnds();

inline constexpr Bytes kRankMemory = 64_MiB;

/// A back end and a number of ranks.
struct TestedWorld {
  BackEnd back_end;
  uint32_t ranks;
};

inline std::vector<TestedWorld> TestedWorlds() {
  std::vector<TestedWorld> worlds;
  for (const BackEnd& back_end : BackEnds()) {
    for (const uint32_t ranks : {1, 2, 3, 4, 8}) worlds.push_back({back_end, ranks});
  }
  return worlds;
}

inline std::string NameOf(const ::testing::TestParamInfo<TestedWorld>& info) {
  return info.param.back_end.name + "_" + std::to_string(info.param.ranks);
}

/// A test of ranks that are made by its back end.
class RanksTest : public ::testing::TestWithParam<TestedWorld> {
 protected:
  void SetUp() override {
    const auto missing = GetParam().back_end.missing(size());
    if (missing && size() > 1) GTEST_SKIP() << *missing;
    PENSTOCK_SKIP_WHERE_MISSING(missing);
    Make();
  }
  /// Makes the ranks anew.
  void Make() {
    ranks_ = Ranks();
    auto made = GetParam().back_end.make(size());
    ASSERT_TRUE(made.ok()) << made.error().message;
    ranks_ = std::move(made).value();
  }
  static uint32_t size() { return GetParam().ranks; }

  Ranks ranks_;
};

}  // namespace penstock::comm
