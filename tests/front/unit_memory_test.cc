// Where the weights of a unit's tiles go.
#include "front/unit_memory.h"

#include <gtest/gtest.h>

#include <cstring>

namespace penstock::front {
namespace {

using offload::GroupId;
using offload::ModuleId;
using offload::ShardLayout;
using offload::TileId;

/// Tensors that are cut by tiles, and tiles that have several tensors; of two dtypes.
ShardLayout Layout() {
  const offload::Planes fp32 = offload::MakeFrozenPlanes(DType::kFloat32);
  const offload::Planes bf16 = offload::MakeFrozenPlanes(DType::kBFloat16);
  offload::ModelLayout model{.groups = {{.name = "a", .planes = fp32, .frozen = true},
                                        {.name = "b", .planes = bf16, .frozen = true}}};
  model.modules = {offload::MakeModule("m", {{.name = "one", .shape = {3}, .group = GroupId{0}},
                                             {.name = "cut", .shape = {5000}, .group = GroupId{0}},
                                             {.name = "b", .shape = {9000}, .group = GroupId{1}},
                                             {.name = "two", .shape = {7, 11}, .group = GroupId{0}},
                                             {.name = "c", .shape = {1}, .group = GroupId{1}}})};
  return offload::MakeShard(std::move(model), 4096);
}

/// Weights of all tiles, each byte another one as far as it goes.
std::vector<std::byte> WeightsOf(const ShardLayout& layout) {
  std::vector<std::byte> bytes(layout.weight_bytes().value);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 131 >> 3);
  return bytes;
}

void Bring(const ShardLayout& layout, const std::vector<std::byte>& weights, const UnitMemory& to) {
  std::vector<Copy> copies;
  size_t at = 0;
  for (const TileId tile : layout.TilesOf(ModuleId{0})) {
    const size_t size = layout.WeightBytes(tile).value;
    to.AddCopies(layout, tile, std::span(weights).subspan(at, size), copies);
    at += size;
  }
  for (const Copy& copy : copies) std::memcpy(copy.to, copy.from.data(), copy.from.size());
}

TEST(UnitMemoryTest, TensorsInMemoryOfTheirOwnGetWhatLiesAtTheirPlacesInARange) {
  const ShardLayout layout = Layout();
  const std::vector<std::byte> weights = WeightsOf(layout);
  std::vector<std::byte> slot(layout.SlotBytes(ModuleId{0}).value);
  Bring(layout, weights, UnitMemory(slot.data()));
  constexpr std::byte kUntouched{0xa5};
  std::vector<std::vector<std::byte>> tensors;
  std::vector<std::byte*> addresses;
  for (const offload::TensorLayout& tensor : layout.module(ModuleId{0}).tensors) {
    const size_t element = tensor.group == GroupId{0} ? 4 : 2;
    tensors.emplace_back(tensor.elements * element + 1, kUntouched);
    addresses.push_back(tensors.back().data());
  }
  Bring(layout, weights, UnitMemory(addresses));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const offload::TensorLayout& tensor = layout.module(ModuleId{0}).tensors[i];
    const size_t offset = layout.SlotOffset(ModuleId{0}, tensor.offset).value;
    const size_t size = tensors[i].size() - 1;
    EXPECT_EQ(std::memcmp(tensors[i].data(), slot.data() + offset, size), 0) << tensor.name;
    EXPECT_EQ(tensors[i].back(), kUntouched) << tensor.name;
  }
}

TEST(UnitMemoryTest, ACallerThatHasTheWeightsWantsNone) {
  EXPECT_FALSE(UnitMemory(nullptr).wanted());
  std::byte memory{};
  EXPECT_TRUE(UnitMemory(&memory).wanted());
  EXPECT_TRUE(UnitMemory(std::vector<std::byte*>{&memory}).wanted());
}

}  // namespace
}  // namespace penstock::front
