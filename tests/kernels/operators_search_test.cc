// The search for numbers that leave their range.
#include <limits>
#include <optional>
#include <vector>

#include "tests/kernels/operators_testing.h"

namespace penstock::kernels {
namespace {

constexpr LayerShapes kShapes{
    .batch = 1, .sequence = 3, .width = 48, .heads = 3, .hidden = 48, .vocabulary = 31};
constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kElements = 5000;

class SearchTest : public OperatorsTest {
 protected:
  /// What is found in ones with these values at these places.
  uint64_t Find(const std::vector<std::pair<uint64_t, double>>& values, float limit, uint64_t base,
                uint64_t before = kNone) {
    OperatorsHarness harness(mode(), kShapes);
    Values all(kElements, 1.0);
    for (const auto& [at, value] : values) all[at] = value;
    const Tensor x = harness.Put(all);
    const Tensor first = harness.Put(DType::kFloat32, Values(2, 0.0));
    auto* const found = reinterpret_cast<uint64_t*>(first.data());
    harness.stream().CopyToDevice(first.data(), reinterpret_cast<const std::byte*>(&before),
                                  Bytes{sizeof before});
    harness.operators().FindBeyond(harness.stream(), kElements, x.data(), limit, base, found);
    uint64_t result = 0;
    harness.stream().CopyToHost(reinterpret_cast<std::byte*>(&result), first.data(),
                                Bytes{sizeof result});
    harness.Synchronize();
    return result;
  }
  static constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr float kMaxFloat = std::numeric_limits<float>::max();
};

TEST_P(SearchTest, TheFirstNumberThatIsNotFiniteIsFound) {
  EXPECT_EQ(Find({}, kMaxFloat, 7), kNone);
  EXPECT_EQ(Find({{0, kNaN}}, kMaxFloat, 7), 7U);
  EXPECT_EQ(Find({{4999, -kInfinity}}, kMaxFloat, 7), 7U + 4999);
  EXPECT_EQ(Find({{4321, kNaN}, {1234, kInfinity}, {4999, kNaN}}, kMaxFloat, 0), 1234U);
}

TEST_P(SearchTest, SoIsTheFirstBeyondALimit) {
  EXPECT_EQ(Find({{300, 96}, {301, -96.5}}, 96, 0), 301U);
  EXPECT_EQ(Find({{300, 96}, {301, -95.5}}, 96, 0), kNone);
}

TEST_P(SearchTest, WhatWasFoundBeforeStaysWhereItComesFirst) {
  EXPECT_EQ(Find({{10, kNaN}}, kMaxFloat, 100, 50), 50U);
  EXPECT_EQ(Find({{10, kNaN}}, kMaxFloat, 100, 500), 110U);
}

INSTANTIATE_TEST_SUITE_P(Modes, SearchTest, AllModes(), ModeName);

}  // namespace
}  // namespace penstock::kernels
