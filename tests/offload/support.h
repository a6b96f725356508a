// A small layout and a folder, for the tests of offload.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

#include "offload/layout.h"
#include "offload/schedule.h"
#include "offload/uuid.h"

namespace penstock::offload {

inline constexpr Uuid kUuid = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

/// Module "a": two tiles with decay (8192 and 4096 elements) and one without; module "b": one tile.
inline ShardLayout SmallLayout(DType dtype, const Moments& moments = {}) {
  ModelLayout model{
      .groups = DecayGroups(MakePlanes(dtype, moments)),
      .modules = {MakeModule("a", {{"a.weight", {100, 120}, kDecay}, {"a.bias", {7}, kNoDecay}}),
                  MakeModule("b", {{"b.weight", {4096}, kDecay}})},
      .parameters = 12000 + 7 + 4096};
  return MakeShard(std::move(model), 8192);
}

/// Each module once, fetched.
inline Schedule EachModuleOnce(const ShardLayout& layout) {
  Schedule schedule;
  for (uint32_t i = 0; i < layout.model.modules.size(); ++i) {
    schedule.uses.push_back({.module = ModuleId{i}, .slot = i, .fetch = true});
    schedule.slot_bytes.push_back(layout.SlotBytes(ModuleId{i}));
    schedule.first_use.push_back(i);
    schedule.update_at.push_back(layout.model.modules.size() + i);
  }
  for (const TileId tile : layout.Tiles()) {
    if (!layout.frozen(tile)) schedule.update_order.push_back(tile);
  }
  schedule.load_order = schedule.update_order;
  return schedule;
}

/// A folder that is there for one test.
class FolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) /
              (std::string(info->name()) + "." + std::to_string(::getpid()));
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

}  // namespace penstock::offload
