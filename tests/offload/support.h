// A small layout and a folder, for the tests of offload.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "offload/layout.h"

namespace penstock::offload {

/// Module "a": two tiles with decay (8192 and 4096 elements) and one without; module "b": one tile.
inline Layout SmallLayout(DType dtype) {
  Layout layout{.dtype = dtype, .tile_elements = 8192};
  layout.modules.push_back({.name = "a",
                            .tensors = {{"a.weight", {100, 120}, ParameterGroup::kDecay, 0, 12000},
                                        {"a.bias", {7}, ParameterGroup::kNoDecay, 12288, 7}},
                            .elements = 16384,
                            .first_tile = TileId{0},
                            .tile_count = 3});
  layout.modules.push_back({.name = "b",
                            .tensors = {{"b.weight", {4096}, ParameterGroup::kDecay, 0, 4096}},
                            .elements = 4096,
                            .first_tile = TileId{3},
                            .tile_count = 1});
  layout.tiles = {{ModuleId{0}, 0, 8192, ParameterGroup::kDecay},
                  {ModuleId{0}, 8192, 4096, ParameterGroup::kDecay},
                  {ModuleId{0}, 12288, 4096, ParameterGroup::kNoDecay},
                  {ModuleId{1}, 0, 4096, ParameterGroup::kDecay}};
  layout.parameters = 12000 + 7 + 4096;
  return layout;
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
